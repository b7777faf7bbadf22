//! State of an endpoint's identifier in addition to the fields that programs see.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;

use farcall_layout::QpInitAttr;
use farcall_wire::cm::{Ece, QueuePair, Reply, Request};

use crate::address::mapped;
use crate::errno::{self, Errno};

/// 1024 bytes: supported by every Ethernet link, and offered there by the kernel's software RNIC.
const REMOTE_MTU: u8 = 3;
/// About one second: a peer that is busy or not scheduled must not count as exited.
const ACK_TIMEOUT: u8 = 18;

/// State of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    New,
    /// It has a local address.
    Bound,
    /// It has a remote address.
    AddressResolved,
    RouteResolved,
    Listening,
    /// It has sent or received a request.
    Connecting,
}

/// Parameters of the peer.
#[derive(Clone, Copy)]
pub struct PeerParams {
    pub qp: QueuePair,
    /// GID of its port.
    pub gid: [u8; 16],
    pub mtu: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub ack_timeout: u8,
    /// Number of READs and atomics that the peer will have outstanding.
    pub reads_in: u8,
    /// Number of READs and atomics that the peer accepts.
    pub reads_out: u8,
}

/// Options that a program sets.
#[derive(Default)]
pub struct IdOptions {
    /// The traffic class.
    pub tos: u8,
    /// 4.096 µs × 2 to this power.
    pub ack_timeout: u8,
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub is_shared: bool,
    /// `RDMA_OPTION_ID_AFONLY`.
    pub is_v6_only: bool,
    pub local_ece: Ece,
}

/// State of an endpoint in addition to the fields that programs see.
#[derive(Default)]
pub struct CmIdState {
    pub options: IdOptions,
    stage: Stage,
    is_sync: bool,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    /// Whether its peer is on another host.
    is_remote: bool,
    psn: u32,
    peer: Option<PeerParams>,
    remote_ece: Ece,
    connect_data: Vec<u8>,
    passive_qp: Option<QpInitAttr>,
    has_failed: bool,
}

impl CmIdState {
    pub fn new() -> Self {
        let psn = RandomState::new().build_hasher().finish() as u32 & 0xff_ffff;
        let options = IdOptions { ack_timeout: ACK_TIMEOUT, ..IdOptions::default() };
        Self { options, psn, ..Self::default() }
    }

    /// Returns whether it has no address yet.
    pub fn is_new(&self) -> bool {
        self.stage == Stage::New
    }

    /// # Errors
    /// Returns `EINVAL` if the endpoint is in another state.
    pub fn require(&self, stage: Stage) -> Result<(), Errno> {
        if self.stage == stage {
            return Ok(());
        }
        let why = format_args!("the identifier is {:?}; this call needs one that is {stage:?}", self.stage);
        Err(errno::refused(libc::EINVAL, why))
    }

    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Returns whether calls wait for the event that they cause (man `rdma_create_id`, with a null channel).
    pub fn is_sync(&self) -> bool {
        self.is_sync
    }

    /// Returns whether calls waited before.
    pub fn set_sync(&mut self, is_sync: bool) -> bool {
        std::mem::replace(&mut self.is_sync, is_sync)
    }

    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    pub fn set_local(&mut self, address: SocketAddr) {
        self.local = Some(address);
    }

    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    pub fn set_remote(&mut self, address: SocketAddr) {
        self.remote = Some(address);
    }

    /// Returns the local and the remote address.
    ///
    /// # Errors
    /// Returns `EINVAL` while one of them is unset.
    pub fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Errno> {
        let both = self.local.zip(self.remote);
        both.ok_or_else(|| errno::invalid("the identifier has no address, or its peer has none"))
    }

    /// Records that its peer's address is resolved, and whether the peer is on another host.
    pub fn resolved(&mut self, is_remote: bool) {
        (self.is_remote, self.stage) = (is_remote, Stage::AddressResolved);
    }

    /// Returns the MTU of the path to the peer, from a port with this MTU.
    pub fn path_mtu(&self, port_mtu: u8) -> u8 {
        if self.is_remote { port_mtu.min(REMOTE_MTU) } else { port_mtu }
    }

    /// Returns the GID of the endpoint's port, which is `port_gid` on this host. For peers on other hosts it is an IP
    /// address.
    pub fn own_gid(&self, port_gid: [u8; 16]) -> [u8; 16] {
        self.local.filter(|_| self.is_remote).map_or(port_gid, |local| mapped(&local.ip()).octets())
    }

    /// Returns the number of the first packet that the peer sends; for a datagram queue pair, of the first packet that
    /// this side sends.
    pub fn psn(&self) -> u32 {
        self.psn
    }

    /// Returns the peer's parameters.
    ///
    /// # Errors
    /// Returns `EINVAL` while there are none.
    pub fn peer(&self) -> Result<PeerParams, Errno> {
        self.peer
            .ok_or_else(|| errno::invalid("the identifier has no peer yet: no request and no reply came"))
    }

    pub fn remote_ece(&self) -> Ece {
        self.remote_ece
    }

    /// Records the request that this side sends: its parameters apply until the reply contains others.
    pub fn requests(&mut self, request: &Request) {
        self.peer = Some(PeerParams {
            qp: QueuePair::default(),
            gid: request.peer_gid,
            mtu: request.mtu,
            retry_count: request.retry_count,
            rnr_retry_count: request.params.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            reads_in: request.params.responder_resources,
            reads_out: request.params.initiator_depth,
        });
    }

    /// Records the peer's request.
    pub fn requested(&mut self, request: &Request) {
        self.peer = Some(PeerParams {
            qp: request.qp,
            gid: request.gid,
            mtu: request.mtu,
            retry_count: request.retry_count,
            rnr_retry_count: request.params.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            reads_in: request.params.initiator_depth,
            reads_out: request.params.responder_resources,
        });
        self.remote_ece = request.ece;
    }

    /// Records the reply of the peer, whose port has this GID.
    pub fn replied(&mut self, reply: &Reply, gid: [u8; 16]) {
        let (mtu, retry_count, ack_timeout) = self.peer.map_or((5, 7, self.options.ack_timeout), |params| {
            (params.mtu, params.retry_count, params.ack_timeout)
        });
        self.peer = Some(PeerParams {
            qp: reply.qp,
            gid,
            mtu,
            retry_count,
            rnr_retry_count: reply.params.rnr_retry_count,
            ack_timeout,
            reads_in: reply.params.initiator_depth,
            reads_out: reply.params.responder_resources,
        });
        self.remote_ece = reply.ece;
    }

    /// Sets the private data for `rdma_connect`, from `rdma_create_ep`.
    pub fn set_connect_data(&mut self, data: Vec<u8>) {
        self.connect_data = data;
    }

    pub fn take_connect_data(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.connect_data)
    }

    /// Sets the attributes of the queue pairs of requests, from `rdma_create_ep`.
    pub fn set_passive_qp(&mut self, init: Option<QpInitAttr>) {
        self.passive_qp = init;
    }

    pub fn passive_qp(&self) -> Option<&QpInitAttr> {
        self.passive_qp.as_ref()
    }

    /// Records that the program is notified that the connection failed, so that it is not also notified of a rejection.
    pub fn fail(&mut self) {
        self.has_failed = true;
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed
    }
}
