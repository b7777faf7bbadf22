//! Connections with other hosts. Their messages are sent over queue pair 1, which all processes of a user share. One
//! elected process receives its messages and forwards each one to its destination: a request to the process that
//! listens at the address, any other message to the process that the communication ID identifies.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_wire::cm::{
    CommunicationIds, Exchange, IpRoute, Mad, Message, MessageClass, RejectedMessage, Rejection, RequestRate,
    ServiceReply, State, TimerAction, reason,
};
use rustix::net::{SendFlags, send};

use crate::connection_journal::{ConnectionJournal, RecordIndex};
use crate::connection_manager::{CmEndpoint, ConnectionManager, Token};
use crate::errno::Errno;
use crate::management::{Management, RemoteMad};
use crate::port::{self, Reached};
use crate::service;

/// Tokens of the descriptors that are watched here.
pub const ARRIVED: Token = Token::MAX;
pub const FORWARDED: Token = Token::MAX - 1;
pub const ELECTION: Token = Token::MAX - 2;

/// Maximum number of messages handled in one iteration of the service thread.
const MESSAGES_PER_ITERATION: usize = 64;
/// A communication ID contains the process above this bit, and the endpoint below.
const SLOT_SHIFT: u32 = 25;
/// Service timeout announced to the peer of a request: 4.096 µs × 2 to this power, 17 s.
const SERVICE_TIMEOUT: u8 = 22;

/// State for connections with other hosts.
pub struct RemoteCm {
    pub management: Management,
    /// Journal of the connections whose peers must be notified if this process is killed.
    pub journal: ConnectionJournal,
    /// Socket by which the elected process forwards messages to this process.
    pub forwarded: OwnedFd,
    requests: RequestRate,
    began: Instant,
    /// First communication ID. It is random, so that it cannot be guessed and differs from those of an earlier process
    /// with the same slot.
    first_id: u32,
}

/// State of an endpoint whose peer is on another host.
pub struct RemoteEndpoint {
    pub peer: Ipv6Addr,
    exchange: Exchange,
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

/// Returns an address in the form that GIDs have.
pub fn mapped(address: &IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => *v6,
    }
}

impl ConnectionManager {
    /// Opens queue pair 1 and the journal.
    ///
    /// # Errors
    /// Returns the error of libibverbs or of the kernel.
    pub fn open_remote(&mut self) -> Result<(), Errno> {
        if self.remote.is_some() {
            return Ok(());
        }
        let management = Management::open()?;
        let forwarded = port::listen_as(management.slot)?;
        let (journal, left) = port::open_journal(management.slot)?;
        self.watch(management.arrived, ARRIVED)?;
        self.watch(forwarded.as_fd(), FORWARDED)?;
        let first_id = RandomState::new().build_hasher().finish() as u32;
        self.remote = Some(RemoteCm {
            management,
            journal,
            forwarded,
            requests: RequestRate::default(),
            began: Instant::now(),
            first_id,
        });
        service::disconnect_at_exit();
        for (place, record) in left {
            self.disconnect_for(&record, Some(place));
        }
        self.elect();
        Ok(())
    }

    /// Returns the communication ID of an endpoint.
    pub fn comm_id(&self, token: Token) -> u32 {
        let known = self.remote.as_ref();
        let (slot, first_id) = known.map_or((0, 0), |remote| (remote.management.slot, remote.first_id));
        slot << SLOT_SHIFT | first_id.wrapping_add(token as u32) & ((1 << SLOT_SHIFT) - 1)
    }

    /// Handles messages that arrived or were forwarded. Returns whether `token` stands for one of their descriptors.
    pub fn handle_remote_event(&mut self, token: Token) -> bool {
        match token {
            ARRIVED => {
                for _ in 0..MESSAGES_PER_ITERATION {
                    let Some(remote_mad) = self.remote.as_ref().and_then(|remote| remote.management.take())
                    else {
                        break;
                    };
                    self.dispatch(&remote_mad);
                }
            }
            FORWARDED => self.accept_all(FORWARDED),
            _ => return false,
        }
        true
    }

    /// Forwards a message to its destination. This process may be stopped at any step, and another one may handle
    /// repetitions of the message in the meantime; so whatever leaves this process is sent by
    /// [`ConnectionManager::forward`] and [`ConnectionManager::reject_as_holder`].
    fn dispatch(&mut self, remote_mad: &RemoteMad) {
        // Its format was checked when it was received.
        let Ok(mad) = Mad::decode(&remote_mad.bytes) else { return };
        if matches!(mad.message, Message::Req(_) | Message::SidrReq(_))
            && !self.is_below_request_limit(remote_mad.src)
        {
            return;
        }
        match &mad.message {
            Message::Req(request) if request.gid == remote_mad.src.octets() => {
                self.forward_to_listener(remote_mad, &mad, &request.route);
            }
            Message::SidrReq(request) => self.forward_to_listener(remote_mad, &mad, &request.route),
            Message::Req(_) => tracing::debug!("a REQ in another's name came from {}", remote_mad.src),
            _ => {
                let slot = mad.remote_comm_id >> SLOT_SHIFT;
                let is_own = self.remote.as_ref().is_some_and(|remote| remote.management.slot == slot);
                // Also if this process disconnects on behalf of an exited process.
                if is_own || self.find(remote_mad.src, mad.remote_comm_id).is_some() {
                    return self.handle_message(remote_mad.src, mad);
                }
                match port::reach_process(slot) {
                    Ok(socket) => self.forward(&socket, remote_mad),
                    Err(libc::ECONNREFUSED | libc::ENOENT) => self.reject_as_holder(remote_mad.src, &mad),
                    Err(error) => tracing::debug!("process {slot} cannot be reached: error {error}"),
                }
            }
        }
    }

    /// Returns whether a host stays below the request rate limit. A dropped request is repeated by its sender.
    fn is_below_request_limit(&mut self, host: Ipv6Addr) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let is_below_request_limit = remote.requests.take(host, remote.began.elapsed());
        if !is_below_request_limit {
            remote.management.count_refused();
        }
        is_below_request_limit
    }

    fn forward_to_listener(&mut self, remote_mad: &RemoteMad, question: &Mad, route: &IpRoute) {
        let is_so = |address: &SocketAddr, ip: Ipv6Addr| mapped(&address.ip()) == ip;
        if !is_so(&route.from, remote_mad.src) || !is_so(&route.to, remote_mad.dst) {
            return tracing::debug!("a request in another's name came from {}", remote_mad.src);
        }
        let Ok(socket) = port::socket() else { return };
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
        if self.remote.as_ref().is_some_and(|remote| remote.management.is_held()) {
            let _ = send(socket, &remote_mad.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Replies to a message without a destination on this host, unless another process has taken queue pair 1 over.
    fn reject_as_holder(&self, peer: Ipv6Addr, mad: &Mad) {
        let (Some(remote), Some(answer)) = (&self.remote, rejection_of(mad)) else { return };
        if !remote.management.send_as_holder(peer, &answer.encode()) {
            tracing::debug!("no rejection was sent to {peer}");
        }
    }

    /// Replies to a message for an endpoint that this process does not have.
    fn reject_unroutable(&self, peer: Ipv6Addr, mad: &Mad) {
        if let Some(answer) = rejection_of(mad) {
            self.send_mad(peer, &answer);
        }
    }

    /// Sends a message, which may be lost.
    pub fn send_mad(&self, peer: Ipv6Addr, mad: &Mad) {
        if !self.remote.as_ref().is_some_and(|remote| remote.management.send(peer, &mad.encode())) {
            tracing::debug!("no way to {peer}");
        }
    }

    fn now(&self) -> Duration {
        self.remote.as_ref().map_or(Duration::ZERO, |remote| remote.began.elapsed())
    }

    /// Returns the endpoint that a peer's message is for.
    fn find(&self, peer: Ipv6Addr, comm_id: u32) -> Option<Token> {
        let is_it = |end: &CmEndpoint| {
            end.remote_end
                .as_ref()
                .is_some_and(|remote_end| remote_end.peer == peer && end.ids.local() == comm_id)
        };
        self.ends.iter().find(|(_, end)| is_it(end)).map(|(token, _)| *token)
    }

    /// Handles a message for an endpoint of this process.
    pub fn handle_message(&mut self, peer: Ipv6Addr, mad: Mad) {
        let now = self.now();
        let Some(token) = self.find(peer, mad.remote_comm_id) else {
            return self.reject_unroutable(peer, &mad);
        };
        let Some(end) = self.ends.get_mut(&token) else { return };
        let (Some(remote_end), Some(connection)) = (&mut end.remote_end, &mut end.connection) else { return };
        if !end.ids.matches(&mad) {
            return tracing::debug!("a message of another connection came from {peer}");
        }
        match remote_end.exchange.received(&mad, now) {
            MessageClass::Duplicate(Some(answer)) => self.send_mad(peer, &answer),
            MessageClass::Duplicate(None) => {}
            MessageClass::New => {
                let was_leaving = connection.state() == State::DreqSent;
                let step = connection.received(mad.message);
                self.apply_peer_step(token, step, was_leaving);
                self.plan(token);
            }
        }
    }

    /// Returns whether a request was received before. Such a request gets the same reply again, or its peer is
    /// requested to wait (MRA). A request that was delayed until its peer had sent later messages is ignored.
    pub fn is_repeated_request(&mut self, peer: Ipv6Addr, question: &Mad) -> bool {
        let now = self.now();
        let mut ends = self.ends.values_mut();
        let asked = Some((question.local_comm_id, question.transaction_id));
        let found = ends.find(|end| {
            end.remote_end
                .as_ref()
                .is_some_and(|remote_end| remote_end.peer == peer && remote_end.asked == asked)
        });
        let Some(end) = found else { return false };
        let Some(remote_end) = &mut end.remote_end else { return false };
        if !remote_end.exchange.is_last_request(question) {
            return true;
        }
        let answer = match remote_end.exchange.received(question, now) {
            MessageClass::Duplicate(Some(answer)) => answer,
            _ => {
                end.ids.mad(Message::Mra { received: RejectedMessage::Req, service_timeout: SERVICE_TIMEOUT })
            }
        };
        if matches!(question.message, Message::Req(_)) || !matches!(answer.message, Message::Mra { .. }) {
            self.send_mad(peer, &answer);
        }
        true
    }

    /// Sends a message of an endpoint. Returns `false` if its peer is not on another host.
    pub fn send_remote(&mut self, token: Token, message: &Message) -> bool {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return false };
        let Some(remote_end) = &mut end.remote_end else { return false };
        let mad = end.ids.mad(message.clone());
        remote_end.exchange.sent(&mad, now);
        let peer = remote_end.peer;
        self.send_mad(peer, &mad);
        self.plan(token);
        true
    }

    /// Sets the timer of an endpoint with a remote peer for its next retransmission.
    fn plan(&mut self, token: Token) {
        let due = self.ends.get(&token).and_then(|end| end.remote_end.as_ref()?.exchange.due());
        if let (Some(due), Some(remote)) = (due, &self.remote) {
            self.add_timer(remote.began + due, token);
        }
    }

    /// Retransmits a message that the peer of an endpoint has not answered.
    pub fn repeat(&mut self, token: Token) {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return };
        let Some(remote_end) = &mut end.remote_end else { return };
        match remote_end.exchange.tick(now) {
            TimerAction::Nothing => {}
            TimerAction::Resend(mad) => {
                let peer = remote_end.peer;
                self.send_mad(peer, &mad);
            }
            TimerAction::Unanswered => {
                let step =
                    end.connection.as_mut().map(|connection| connection.timed_out()).unwrap_or_default();
                return self.apply_step(token, step);
            }
        }
        self.plan(token);
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
