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

use crate::connection_manager::{ConnectionManager, End, Token};
use crate::errno::Errno;
use crate::management::{Foreign, Management};
use crate::noted::{Connections, Place};
use crate::port::{self, Reached};
use crate::service;

/// Tokens of the descriptors that are watched here.
pub const ARRIVED: Token = Token::MAX;
pub const HANDED: Token = Token::MAX - 1;
pub const ELECTION: Token = Token::MAX - 2;

/// Maximum number of messages handled in one turn.
const MESSAGES_A_TURN: usize = 64;
/// A communication ID contains the process above this bit, and the endpoint below.
const SLOT_SHIFT: u32 = 25;
/// Service timeout announced to the peer of a request: 4.096 µs × 2 to this power, 17 s.
const SERVICE_TIMEOUT: u8 = 22;

/// State for connections with other hosts.
pub struct Abroad {
    pub management: Management,
    /// Journal of the connections whose peers must be notified if this process is killed.
    pub connections: Connections,
    /// Socket by which the elected process forwards messages to this process.
    pub handed: OwnedFd,
    requests: RequestRate,
    began: Instant,
    /// First communication ID. It is random, so that it cannot be guessed and differs from those of an earlier process
    /// with the same slot.
    first_id: u32,
}

/// State of an endpoint whose peer is on another host.
pub struct Far {
    pub peer: Ipv6Addr,
    exchange: Exchange,
    /// Its slot in the journal.
    pub place: Option<Place>,
    /// If the peer sent the request: the peer's communication ID and transaction ID.
    pub asked: Option<(u32, u64)>,
    /// `true` if the program has destroyed the endpoint, or its process has exited: the DREQ is repeated until it is
    /// answered.
    pub is_left: bool,
}

impl Far {
    pub fn new(peer: Ipv6Addr) -> Self {
        Self { peer, exchange: Exchange::default(), place: None, asked: None, is_left: false }
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
    pub fn go_abroad(&mut self) -> Result<(), Errno> {
        if self.abroad.is_some() {
            return Ok(());
        }
        let management = Management::open()?;
        let handed = port::listen_as(management.slot)?;
        let (connections, left) = port::noted_connections(management.slot)?;
        self.watch(management.arrived, ARRIVED)?;
        self.watch(handed.as_fd(), HANDED)?;
        let first_id = RandomState::new().build_hasher().finish() as u32;
        self.abroad = Some(Abroad {
            management,
            connections,
            handed,
            requests: RequestRate::default(),
            began: Instant::now(),
            first_id,
        });
        service::leave_at_exit();
        for (place, noted) in left {
            self.speak_for(&noted, Some(place));
        }
        self.elect();
        Ok(())
    }

    /// Returns the communication ID of an endpoint.
    pub fn comm_id(&self, token: Token) -> u32 {
        let known = self.abroad.as_ref();
        let (slot, first_id) = known.map_or((0, 0), |abroad| (abroad.management.slot, abroad.first_id));
        slot << SLOT_SHIFT | first_id.wrapping_add(token as u32) & ((1 << SLOT_SHIFT) - 1)
    }

    /// Handles messages that arrived or were forwarded. Returns whether `token` stands for one of their descriptors.
    pub fn foreign_readable(&mut self, token: Token) -> bool {
        match token {
            ARRIVED => {
                for _ in 0..MESSAGES_A_TURN {
                    let Some(foreign) = self.abroad.as_ref().and_then(|abroad| abroad.management.take())
                    else {
                        break;
                    };
                    self.sort(&foreign);
                }
            }
            HANDED => self.accept_all(HANDED),
            _ => return false,
        }
        true
    }

    /// Forwards a message to its destination.
    fn sort(&mut self, foreign: &Foreign) {
        // Its format was checked when it was received.
        let Ok(mad) = Mad::decode(&foreign.bytes) else { return };
        if matches!(mad.message, Message::Req(_) | Message::SidrReq(_)) && !self.may_ask(foreign.src) {
            return;
        }
        match &mad.message {
            Message::Req(request) if request.gid == foreign.src.octets() => {
                self.ask_listener(foreign, &mad, &request.route);
            }
            Message::SidrReq(request) => self.ask_listener(foreign, &mad, &request.route),
            Message::Req(_) => tracing::debug!("a REQ in another's name came from {}", foreign.src),
            _ => {
                let slot = mad.remote_comm_id >> SLOT_SHIFT;
                let is_own = self.abroad.as_ref().is_some_and(|abroad| abroad.management.slot == slot);
                // Also if this process disconnects on behalf of an exited process.
                if is_own || self.find(foreign.src, mad.remote_comm_id).is_some() {
                    return self.hear(foreign.src, mad);
                }
                match port::reach_process(slot) {
                    // A message that is not accepted is repeated by its sender.
                    Ok(socket) => drop(hand(&socket, foreign)),
                    Err(libc::ECONNREFUSED | libc::ENOENT) => self.answer_for_nobody(foreign.src, &mad),
                    Err(error) => tracing::debug!("process {slot} cannot be reached: error {error}"),
                }
            }
        }
    }

    /// Returns whether a host stays below the request rate limit. A dropped request is repeated by its sender.
    fn may_ask(&mut self, host: Ipv6Addr) -> bool {
        let Some(abroad) = &mut self.abroad else { return false };
        let may_ask = abroad.requests.take(host, abroad.began.elapsed());
        if !may_ask {
            abroad.management.count_refused();
        }
        may_ask
    }

    fn ask_listener(&mut self, foreign: &Foreign, question: &Mad, route: &IpRoute) {
        let is_so = |address: &SocketAddr, ip: Ipv6Addr| mapped(&address.ip()) == ip;
        if !is_so(&route.from, foreign.src) || !is_so(&route.to, foreign.dst) {
            return tracing::debug!("a request in another's name came from {}", foreign.src);
        }
        let Ok(socket) = port::socket() else { return };
        match port::reach(&socket, route.port_space, &route.to) {
            Ok(Reached::Yes) => drop(hand(&socket, foreign)),
            Ok(Reached::Nobody) => self.answer_for_nobody(foreign.src, question),
            // The request is repeated by its sender.
            Ok(Reached::Busy) | Err(_) => {}
        }
    }

    /// Replies to a message without a destination on this host.
    fn answer_for_nobody(&self, peer: Ipv6Addr, mad: &Mad) {
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
            _ => return,
        };
        self.send_abroad(peer, &CommunicationIds::for_responder(mad.remote_comm_id, mad).mad(answer));
    }

    /// Sends a message, which may be lost.
    pub fn send_abroad(&self, peer: Ipv6Addr, mad: &Mad) {
        if !self.abroad.as_ref().is_some_and(|abroad| abroad.management.send(peer, &mad.encode())) {
            tracing::debug!("no way to {peer}");
        }
    }

    fn now(&self) -> Duration {
        self.abroad.as_ref().map_or(Duration::ZERO, |abroad| abroad.began.elapsed())
    }

    /// Returns the endpoint that a peer's message is for.
    fn find(&self, peer: Ipv6Addr, comm_id: u32) -> Option<Token> {
        let is_it =
            |end: &End| end.far.as_ref().is_some_and(|far| far.peer == peer && end.ids.local() == comm_id);
        self.ends.iter().find(|(_, end)| is_it(end)).map(|(token, _)| *token)
    }

    /// Handles a message for an endpoint of this process.
    pub fn hear(&mut self, peer: Ipv6Addr, mad: Mad) {
        let now = self.now();
        let Some(token) = self.find(peer, mad.remote_comm_id) else {
            return self.answer_for_nobody(peer, &mad);
        };
        let Some(end) = self.ends.get_mut(&token) else { return };
        let (Some(far), Some(connection)) = (&mut end.far, &mut end.connection) else { return };
        if !end.ids.matches(&mad) {
            return tracing::debug!("a message of another connection came from {peer}");
        }
        match far.exchange.received(&mad, now) {
            MessageClass::Duplicate(Some(answer)) => self.send_abroad(peer, &answer),
            MessageClass::Duplicate(None) => {}
            MessageClass::New => {
                let was_leaving = connection.state() == State::DreqSent;
                let step = connection.received(mad.message);
                self.take_peer_step(token, step, was_leaving);
                self.plan(token);
            }
        }
    }

    /// Returns whether a request was received before. Such a request gets the same reply again, or its peer is
    /// requested to wait (MRA). A request that was delayed until its peer had sent later messages is ignored.
    pub fn is_known(&mut self, peer: Ipv6Addr, question: &Mad) -> bool {
        let now = self.now();
        let mut ends = self.ends.values_mut();
        let asked = Some((question.local_comm_id, question.transaction_id));
        let found =
            ends.find(|end| end.far.as_ref().is_some_and(|far| far.peer == peer && far.asked == asked));
        let Some(end) = found else { return false };
        let Some(far) = &mut end.far else { return false };
        if !far.exchange.is_last_request(question) {
            return true;
        }
        let answer = match far.exchange.received(question, now) {
            MessageClass::Duplicate(Some(answer)) => answer,
            _ => {
                end.ids.mad(Message::Mra { received: RejectedMessage::Req, service_timeout: SERVICE_TIMEOUT })
            }
        };
        if matches!(question.message, Message::Req(_)) || !matches!(answer.message, Message::Mra { .. }) {
            self.send_abroad(peer, &answer);
        }
        true
    }

    /// Sends a message of an endpoint. Returns `false` if its peer is not on another host.
    pub fn send_far(&mut self, token: Token, message: &Message) -> bool {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return false };
        let Some(far) = &mut end.far else { return false };
        let mad = end.ids.mad(message.clone());
        far.exchange.sent(&mad, now);
        let peer = far.peer;
        self.send_abroad(peer, &mad);
        self.plan(token);
        true
    }

    /// Sets the timer of an endpoint with a remote peer for its next retransmission.
    fn plan(&mut self, token: Token) {
        let due = self.ends.get(&token).and_then(|end| end.far.as_ref()?.exchange.due());
        if let (Some(due), Some(abroad)) = (due, &self.abroad) {
            self.add_timer(abroad.began + due, token);
        }
    }

    /// Retransmits a message that the peer of an endpoint has not answered.
    pub fn repeat(&mut self, token: Token) {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return };
        let Some(far) = &mut end.far else { return };
        match far.exchange.tick(now) {
            TimerAction::Nothing => {}
            TimerAction::Resend(mad) => {
                let peer = far.peer;
                self.send_abroad(peer, &mad);
            }
            TimerAction::Unanswered => {
                let step =
                    end.connection.as_mut().map(|connection| connection.timed_out()).unwrap_or_default();
                return self.take_step(token, step);
            }
        }
        self.plan(token);
    }
}

/// Forwards a message. Returns whether it was accepted.
fn hand(socket: &OwnedFd, foreign: &Foreign) -> bool {
    send(socket, &foreign.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}
