//! State that a process has once: its memory regions, its peers, and one blocking service thread.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use farcall_shm::fork::Generation;
use farcall_shm::{Mutex, fence};
use farcall_verbs::{Error, Gid, Mtu, Result};

use super::addresses::{TransportPolicy, is_of_this_host, require_device, require_peer, whole_mtu_of};
use super::fork;
use super::gid_table::{Entry, GidTable};
use super::handshake::{Handshakes, PeerHandshake};
use super::local_gids::{GID_TABLE_LEN, gid_table, is_ip_address};
use super::peer::Peer;
use super::peers::Peers;
use super::regions::RegionTable;
use super::rendezvous::{block_of, gid, is_published_address, is_reachable_by_shm};
use super::service_thread::Service;

pub(crate) struct Process {
    fork_generation: Generation,
    /// Identifies this process uniquely.
    pub(crate) instance: u64,
    /// GID table entries for this host; the first is that of the rendezvous space.
    pub(crate) gids: [Gid; GID_TABLE_LEN],
    policy: TransportPolicy,
    /// See [`Process::whole_mtu`].
    whole_mtu: Option<Mtu>,
    /// `true` if the program has queried one of its addresses, to announce it to other hosts, or uses only RoCEv2.
    accepts_remote_datagrams: AtomicBool,
    /// GID table of the port.
    pub(crate) table: GidTable,
    pub(crate) regions: RegionTable,
    pub(crate) service: Service,
    peers: Peers,
    handshakes: Handshakes,
    /// Handshake with the process that was last checked; a connection to it continues on the same socket.
    authorizing: Mutex<Option<Arc<PeerHandshake>>>,
    next_number: AtomicU32,
}

/// Returns the GID table of the port without opening a device.
///
/// # Errors
/// Returns an error if there is no directory for rendezvous sockets, or if the transport policy is malformed.
pub(crate) fn gid_entries() -> Result<Vec<Entry>> {
    Ok(GidTable::new(TransportPolicy::configured()?, &gid_table(gid()?)).entries())
}

impl Process {
    /// Creates the state. The caller stores it in [`fork::INSTANCE`], whose lock it holds.
    pub(crate) fn new() -> Result<Self> {
        fork::install();
        fence::asymmetric();
        let (gids, policy) = (gid_table(gid()?), TransportPolicy::configured()?);
        let table = GidTable::new(policy, &gids);
        // Read once, because both ends of a connection rely on the value that this process has reported.
        let entries = table.entries();
        let there = entries.iter().filter(|entry| table.has_address(entry.gid));
        let whole_mtu = there.filter_map(|entry| whole_mtu_of(&entry.netdev)).min();
        Ok(Self {
            fork_generation: Generation::current(),
            instance: RandomState::new().build_hasher().finish(),
            gids,
            policy,
            whole_mtu,
            accepts_remote_datagrams: AtomicBool::new(policy == TransportPolicy::RoCE),
            table,
            regions: RegionTable::new()?,
            service: Service::new()?,
            peers: Peers::default(),
            handshakes: Handshakes::default(),
            authorizing: Mutex::default(),
            next_number: AtomicU32::new(1),
        })
    }

    /// Returns whether the state was inherited through a fork; its threads do not exist in this process then.
    pub(crate) fn is_inherited(&self) -> bool {
        self.fork_generation.is_inherited()
    }

    /// # Errors
    /// Returns an error if the state was inherited through a fork.
    pub(crate) fn require_here(&self, operation: &'static str) -> Result<()> {
        self.fork_generation.require_current(operation, "the opened device")
    }

    /// Returns whether other hosts reach this one by this address.
    pub(crate) fn is_address(&self, address: Ipv6Addr) -> bool {
        self.table.has_address(Gid(address.octets()))
    }

    /// Returns whether a GID table entry leads to this process, even if the addresses of this host have changed.
    pub(crate) fn is_reached_by(&self, gid: Gid) -> bool {
        let address = Ipv6Addr::from(gid.0);
        self.gids.contains(&gid) || self.is_address(address) && is_of_this_host(address)
    }

    /// Returns the longest MTU whose packets pass through every usable network device without fragmentation.
    pub(crate) fn whole_mtu(&self) -> Option<Mtu> {
        self.whole_mtu
    }

    /// Returns the MTU of the port, which programs use for their queue pairs. If every packet goes through a network
    /// device it is [`Process::whole_mtu`]; shared memory permits the longest one.
    pub(crate) fn port_mtu(&self) -> Mtu {
        match self.policy {
            TransportPolicy::RoCE => self.whole_mtu.unwrap_or(Mtu::Mtu4096),
            TransportPolicy::Auto | TransportPolicy::SharedMemory => Mtu::Mtu4096,
        }
    }

    /// Records that the program queries a GID table entry: hosts that learn an address of this host may send datagrams
    /// to it.
    pub(crate) fn on_gid_query(&self, gid: Gid) {
        if self.is_address(Ipv6Addr::from(gid.0)) {
            self.accepts_remote_datagrams.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether other hosts may send datagrams to this process without having received one.
    pub(crate) fn accepts_remote_datagrams(&self) -> bool {
        self.accepts_remote_datagrams.load(Ordering::Relaxed)
    }

    /// Checks that `FARCALL_TRANSPORT` permits other hosts.
    ///
    /// # Errors
    /// Returns an error if it does not.
    pub(crate) fn require_remote_allowed(&self, operation: &'static str) -> Result<()> {
        match self.policy {
            TransportPolicy::SharedMemory => Err(Error::invalid(
                operation,
                "FARCALL_TRANSPORT=shared-memory forbids other hosts".to_owned(),
            )),
            TransportPolicy::Auto | TransportPolicy::RoCE => Ok(()),
        }
    }

    /// Returns whether the path of datagrams leads to another host.
    ///
    /// # Errors
    /// Returns an error with the remedy if the path leads to no host.
    pub(crate) fn is_remote_datagram_path(&self, operation: &'static str, dgid: Gid) -> Result<bool> {
        let is_remote = match self.policy {
            TransportPolicy::RoCE => is_ip_address(dgid),
            TransportPolicy::Auto => {
                is_ip_address(dgid) && !self.gids.contains(&dgid) && !self.is_address_here(dgid)
            }
            TransportPolicy::SharedMemory => false,
        };
        if is_remote {
            return Ok(true);
        }
        self.require_reachable(operation, dgid).map(|()| false)
    }

    /// Returns whether a path leads to another host.
    ///
    /// # Errors
    /// Returns an error with the remedy if the path leads to no host.
    pub(crate) fn is_remote_path(&self, operation: &'static str, dgid: Gid, qpn: u32) -> Result<bool> {
        if self.policy == TransportPolicy::RoCE && is_ip_address(dgid) {
            return Ok(true);
        }
        if self.policy == TransportPolicy::Auto && is_ip_address(dgid) && !self.gids.contains(&dgid) {
            // An address of this host, including loopback addresses, or of a reachable process in another network
            // namespace, such as a container.
            let is_local = self.is_local_address(Ipv6Addr::from(dgid.0));
            return match is_reachable_by_shm(qpn, dgid, is_local) {
                true => Ok(false),
                false if is_local => Err(self.unreachable(operation, dgid)),
                false => Ok(true),
            };
        }
        self.require_reachable(operation, dgid).map(|()| false)
    }

    /// Returns whether requests to a queue pair go through shared memory, or through RoCEv2 because RoCEv2 is forced.
    pub(crate) fn carries_to(&self, dgid: Gid, qpn: u32) -> bool {
        self.policy == TransportPolicy::RoCE
            || matches!(self.is_remote_path("select a path", dgid, qpn), Ok(false))
    }

    /// Checks that connections to another host are permitted, by any protocol.
    ///
    /// # Errors
    /// Returns an error if the environment forbids other hosts, this host, or the device that leads to it.
    pub(crate) fn check_connection(&self, operation: &'static str, own: IpAddr, peer: IpAddr) -> Result<()> {
        if self.policy == TransportPolicy::SharedMemory {
            return Err(Error::invalid(
                operation,
                format!("{peer} is another host, which FARCALL_TRANSPORT=shared-memory forbids"),
            ));
        }
        let [own, peer] = [own, peer].map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        require_peer(operation, peer)?;
        require_device(operation, own, self.is_address(own))
    }

    /// Returns whether packets for an address stay on this host: it is in the GID table, or another address of this
    /// host.
    fn is_local_address(&self, address: Ipv6Addr) -> bool {
        self.is_address(address) || is_of_this_host(address)
    }

    /// Returns whether `FARCALL_TRANSPORT` forces RoCEv2, also to this host.
    pub(crate) fn forces_roce(&self) -> bool {
        self.policy == TransportPolicy::RoCE
    }

    /// Returns whether a process of this host has this address.
    fn is_address_here(&self, dgid: Gid) -> bool {
        self.policy == TransportPolicy::Auto
            && (self.is_local_address(Ipv6Addr::from(dgid.0)) || is_published_address(dgid))
    }

    /// Checks that a path leads to this host.
    ///
    /// # Errors
    /// Returns an error with the remedy if it does not.
    pub(crate) fn require_reachable(&self, operation: &'static str, dgid: Gid) -> Result<()> {
        if self.gids.contains(&dgid) || self.is_address_here(dgid) {
            return Ok(());
        }
        Err(self.unreachable(operation, dgid))
    }

    fn unreachable(&self, operation: &'static str, dgid: Gid) -> Error {
        let what = format!(
            "GID {dgid} is not of this user on this host ({}): shared memory does not reach it (containers share a \
             directory through FARCALL_SOCKET_DIR, users also a group through FARCALL_GROUP), and it is no address of \
             another host, or FARCALL_TRANSPORT=shared-memory forbids those",
            self.gids[0]
        );
        Error::invalid(operation, what)
    }

    /// Returns a unique number for a protection domain, completion queue or shared receive queue.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the process that owns a queue pair number; connects to it at the first use. Returns `None` if the
    /// process has not replied yet. The caller then repeats the call with the same `handshake`, which keeps the
    /// handshake alive. Never blocks.
    ///
    /// # Errors
    /// Returns an error if there is no such process, or if either process is not authorized to connect to the other.
    /// This is determined immediately, and before anything else.
    pub(crate) fn peer_of(
        &self,
        qpn: u32,
        handshake: &mut Option<Arc<PeerHandshake>>,
    ) -> Result<Option<Arc<Peer>>> {
        let block = block_of(qpn);
        let peer = match self.peers.get(block) {
            Some(peer) => Ok(Some(peer)),
            None => handshake.get_or_insert_with(|| self.handshakes.get_or_begin(block)).poll(
                &self.service,
                &self.peers,
                block,
            ),
        };
        if !matches!(peer, Ok(None)) {
            *handshake = None;
        }
        peer
    }

    /// Checks that the process that owns a queue pair number and this process are authorized to connect. Never blocks.
    ///
    /// # Errors
    /// Returns an error if they are not, or if there is no such process.
    pub(crate) fn authorize_qp_owner(&self, qpn: u32) -> Result<()> {
        let mut handshake = None;
        self.peer_of(qpn, &mut handshake)?;
        *self.authorizing.lock() = handshake;
        Ok(())
    }

    /// Removes an exited peer, so that its descriptors and mappings are released with its last queue pair.
    pub(super) fn forget(&self, peer: &Arc<Peer>) {
        self.peers.forget(peer);
    }
}
