//! Connections with other hosts. Their messages are sent over queue pair 1, which all processes of a user share. One
//! elected process receives its messages and forwards each one to its destination: a request to the process that
//! listens at the address, any other message to the process that the communication ID identifies.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_wire::cm::{
    CommunicationIds, Exchange, IpRoute, Mad, Message, RejectedMessage, Rejection, RequestRate, ServiceReply,
    reason,
};
use rustix::net::{SendFlags, send};

use crate::address::mapped;
use crate::connection_journal::{ConnectionJournal, JournaledConnection, RecordIndex};
use crate::errno::Errno;
use crate::local_socket;
use crate::management::{Management, RemoteMad};
use crate::port::{self, Reached};
use crate::token::Token;

/// A communication ID contains the process above this bit, and the endpoint below.
const SLOT_SHIFT: u32 = 25;

/// State for connections with other hosts.
pub struct RemoteCm {
    management: Management,
    /// Journal of the connections whose peers must be notified if this process is killed.
    journal: ConnectionJournal,
    /// Socket by which the elected process forwards messages to this process.
    forwarded: OwnedFd,
    requests: RequestRate,
    began: Instant,
    /// First communication ID. It is random, so that it cannot be guessed and differs from those of an earlier process
    /// with the same slot.
    first_id: u32,
}

/// State of an endpoint whose peer is on another host.
pub struct RemoteEndpoint {
    pub peer: Ipv6Addr,
    pub exchange: Exchange,
    /// Its slot in the journal.
    pub place: Option<RecordIndex>,
    /// If the peer sent the request: the peer's communication ID and transaction ID.
    pub asked: Option<(u32, u64)>,
    /// `true` if the program has destroyed the endpoint, or its process has exited: the DREQ is repeated until it is
    /// answered.
    pub is_orphaned: bool,
}

impl RemoteEndpoint {
    pub fn new(peer: Ipv6Addr) -> Self {
        Self { peer, exchange: Exchange::default(), place: None, asked: None, is_orphaned: false }
    }

    /// Creates the state of an endpoint that received a request.
    pub fn asked(peer: Ipv6Addr, question: Mad) -> Self {
        let asked = Some((question.local_comm_id, question.transaction_id));
        Self { exchange: Exchange::for_request(question), asked, ..Self::new(peer) }
    }
}

impl RemoteCm {
    /// Opens queue pair 1 and the journal. Also returns the records of the previous process with this process's slot.
    ///
    /// # Errors
    /// Returns the error of libibverbs or of the kernel.
    pub fn open() -> Result<(Self, Vec<(RecordIndex, JournaledConnection)>), Errno> {
        let management = Management::open()?;
        let forwarded = port::listen_as(management.slot)?;
        let (journal, left) = port::open_journal(management.slot)?;
        let first_id = RandomState::new().build_hasher().finish() as u32;
        let (requests, began) = (RequestRate::default(), Instant::now());
        Ok((Self { management, journal, forwarded, requests, began, first_id }, left))
    }

    /// Returns the descriptors that are readable when messages arrived, and when other processes forward messages.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.management.arrived, self.forwarded.as_fd()]
    }

    /// Returns the socket by which the elected process forwards messages to this process.
    pub fn forwarded(&self) -> &OwnedFd {
        &self.forwarded
    }

    pub fn management(&self) -> &Management {
        &self.management
    }

    pub fn journal(&mut self) -> &mut ConnectionJournal {
        &mut self.journal
    }

    /// Returns the time since this was opened, on which exchanges are based.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the instant of a time of an exchange.
    pub fn instant(&self, due: Duration) -> Instant {
        self.began + due
    }

    /// Returns the communication ID of an endpoint.
    pub fn comm_id(&self, token: Token) -> u32 {
        self.management.slot << SLOT_SHIFT
            | self.first_id.wrapping_add(token as u32) & ((1 << SLOT_SHIFT) - 1)
    }

    /// Returns whether a communication ID contains this process.
    pub fn is_own(&self, comm_id: u32) -> bool {
        comm_id >> SLOT_SHIFT == self.management.slot
    }

    /// Forwards a message to the process that its communication ID identifies.
    pub fn forward_to_process(&self, remote_mad: &RemoteMad, mad: &Mad) {
        let slot = mad.remote_comm_id >> SLOT_SHIFT;
        match port::reach_process(slot) {
            Ok(socket) => self.forward(&socket, remote_mad),
            Err(libc::ECONNREFUSED | libc::ENOENT) => self.reject_as_holder(remote_mad.src, mad),
            Err(error) => tracing::debug!("process {slot} cannot be reached: error {error}"),
        }
    }

    /// Returns whether a host stays below the request rate limit. A dropped request is repeated by its sender.
    pub fn is_below_request_limit(&mut self, host: Ipv6Addr) -> bool {
        let is_below_request_limit = self.requests.take(host, self.began.elapsed());
        if !is_below_request_limit {
            self.management.count_refused();
        }
        is_below_request_limit
    }

    /// Forwards a request to the process that listens at its address.
    pub fn forward_to_listener(&mut self, remote_mad: &RemoteMad, question: &Mad, route: &IpRoute) {
        let is_so = |address: &SocketAddr, ip: Ipv6Addr| mapped(&address.ip()) == ip;
        if !is_so(&route.from, remote_mad.src) || !is_so(&route.to, remote_mad.dst) {
            return tracing::debug!("a request in another's name came from {}", remote_mad.src);
        }
        let Ok(socket) = local_socket::socket() else { return };
        match port::reach(&socket, route.port_space, &route.to) {
            Ok(Reached::Yes) => self.forward(&socket, remote_mad),
            Ok(Reached::NoListener) => self.reject_as_holder(remote_mad.src, question),
            // The request is repeated by its sender.
            Ok(Reached::Busy) | Err(_) => {}
        }
    }

    /// Forwards a message, unless another process has taken queue pair 1 over. A message that is not accepted is
    /// repeated by its sender. One that is forwarded twice has the effect of one that the network duplicated.
    fn forward(&self, socket: &OwnedFd, remote_mad: &RemoteMad) {
        if self.management.is_held() {
            let _ = send(socket, &remote_mad.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Replies to a message without a destination on this host, unless another process has taken queue pair 1 over.
    fn reject_as_holder(&self, peer: Ipv6Addr, mad: &Mad) {
        let Some(answer) = rejection_of(mad) else { return };
        if !self.management.send_as_holder(peer, &answer.encode()) {
            tracing::debug!("no rejection was sent to {peer}");
        }
    }

    /// Replies to a message for an endpoint that this process does not have.
    pub fn reject_unroutable(&self, peer: Ipv6Addr, mad: &Mad) {
        if let Some(answer) = rejection_of(mad) {
            self.send(peer, &answer);
        }
    }

    /// Sends a message, which may be lost.
    pub fn send(&self, peer: Ipv6Addr, mad: &Mad) {
        if !self.management.send(peer, &mad.encode()) {
            tracing::debug!("no way to {peer}");
        }
    }
}

/// Returns the reply to a message without a destination; `None` if it gets none.
fn rejection_of(mad: &Mad) -> Option<Mad> {
    let private_data = Vec::new();
    let answer = match &mad.message {
        Message::Req(_) => Message::Rej(Rejection {
            rejected: RejectedMessage::Req,
            reason: reason::INVALID_SERVICE_ID,
            private_data,
        }),
        Message::SidrReq(request) => Message::SidrRep(ServiceReply {
            status: reason::SIDR_UNSUPPORTED,
            qp_num: 0,
            service_id: request.route.service_id(),
            qkey: 0,
            private_data,
        }),
        Message::Rep(_) => Message::Rej(Rejection {
            rejected: RejectedMessage::Rep,
            reason: reason::INVALID_COMMUNICATION_ID,
            private_data,
        }),
        Message::Dreq { .. } => Message::Drep,
        _ => return None,
    };
    Some(CommunicationIds::for_responder(mad.remote_comm_id, mad).mad(answer))
}
