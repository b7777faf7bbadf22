//! Connections with other hosts. Their messages go through queue pair 1, which all processes of a user share: one of
//! them, elected, takes what comes, and hands each message to the process that it is for: a request to who listens
//! there, all else to the process that the communication ID names.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_wire::cm::{
    Answered, CommunicationIds, Due, Exchange, Heard, IpRoute, Mad, Message, Rejection, RequestRate,
    ServiceReply, State, reason,
};
use rustix::net::{SendFlags, send};

use crate::connection_manager::{ConnectionManager, End, Token};
use crate::errno::Errno;
use crate::management::{Foreign, Management};
use crate::noted::{Connections, Place};
use crate::port::{self, Reached};
use crate::service;

/// The numbers of what this waits for.
pub const ARRIVED: Token = Token::MAX;
pub const HANDED: Token = Token::MAX - 1;
pub const ELECTION: Token = Token::MAX - 2;

/// Messages that one turn takes.
const MESSAGES_A_TURN: usize = 64;
/// A communication ID has the process above, the end below.
const SLOT_SHIFT: u32 = 25;
/// How long the program of a request may take, as its peer is told: 4.096 µs × 2 to this power, 17 s.
const SERVICE_TIMEOUT: u8 = 22;

/// The way to other hosts.
pub struct Abroad {
    pub management: Management,
    /// What our peers are to be told of when we are killed.
    pub connections: Connections,
    /// Where the elected process hands us our messages.
    pub handed: OwnedFd,
    requests: RequestRate,
    began: Instant,
    /// Our first communication ID: nobody can guess it, and who had our number before had others.
    first_id: u32,
}

/// An end whose peer is on another host.
pub struct Far {
    pub peer: Ipv6Addr,
    exchange: Exchange,
    /// Where it is noted.
    pub place: Option<Place>,
    /// If its peer began: its names for that, of the communication and the transaction.
    pub asked: Option<(u32, u64)>,
    /// Whether its program has destroyed it, or its process has died: it says DREQ until that is answered.
    pub is_left: bool,
}

impl Far {
    pub fn new(peer: Ipv6Addr) -> Self {
        Self { peer, exchange: Exchange::default(), place: None, asked: None, is_left: false }
    }

    /// The end of who was asked.
    pub fn asked(peer: Ipv6Addr, question: Mad) -> Self {
        let asked = Some((question.local_comm_id, question.transaction_id));
        Self { exchange: Exchange::asked(question), asked, ..Self::new(peer) }
    }
}

/// An address as GIDs have it.
pub fn mapped(address: &IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => *v6,
    }
}

impl ConnectionManager {
    /// Opens the way to other hosts.
    ///
    /// # Errors
    /// What libibverbs or the kernel says.
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

    /// What an end calls its connection.
    pub fn comm_id(&self, token: Token) -> u32 {
        let known = self.abroad.as_ref();
        let (slot, first_id) = known.map_or((0, 0), |abroad| (abroad.management.slot, abroad.first_id));
        slot << SLOT_SHIFT | first_id.wrapping_add(token as u32) & ((1 << SLOT_SHIFT) - 1)
    }

    /// Messages came, or are handed to us; whether that is what the token stands for.
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

    /// Gives a message to whom it is for.
    fn sort(&mut self, foreign: &Foreign) {
        // Its form was checked where it was counted.
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
                // Of those that we speak for, too.
                if is_own || self.find(foreign.src, mad.remote_comm_id).is_some() {
                    return self.hear(foreign.src, mad);
                }
                match port::reach_process(slot) {
                    // What is not taken comes again.
                    Ok(socket) => drop(hand(&socket, foreign)),
                    Err(libc::ECONNREFUSED | libc::ENOENT) => self.answer_for_nobody(foreign.src, &mad),
                    Err(error) => tracing::debug!("process {slot} cannot be reached: error {error}"),
                }
            }
        }
    }

    /// Returns whether a host does not ask too often. A request that is dropped comes again.
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
            // It comes again.
            Ok(Reached::Busy) | Err(_) => {}
        }
    }

    /// Answers what is for nobody here.
    fn answer_for_nobody(&self, peer: Ipv6Addr, mad: &Mad) {
        let private_data = Vec::new();
        let answer = match &mad.message {
            Message::Req(_) => Message::Rej(Rejection {
                rejected: Answered::Req,
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
                rejected: Answered::Rep,
                reason: reason::INVALID_COMMUNICATION_ID,
                private_data,
            }),
            Message::Dreq { .. } => Message::Drep,
            _ => return,
        };
        self.send_abroad(peer, &CommunicationIds::asked(mad.remote_comm_id, mad).mad(answer));
    }

    /// Sends a message that may be lost.
    pub fn send_abroad(&self, peer: Ipv6Addr, mad: &Mad) {
        if !self.abroad.as_ref().is_some_and(|abroad| abroad.management.send(peer, &mad.encode())) {
            tracing::debug!("no way to {peer}");
        }
    }

    fn now(&self) -> Duration {
        self.abroad.as_ref().map_or(Duration::ZERO, |abroad| abroad.began.elapsed())
    }

    /// The end that a peer's message is for.
    fn find(&self, peer: Ipv6Addr, comm_id: u32) -> Option<Token> {
        let is_it =
            |end: &End| end.far.as_ref().is_some_and(|far| far.peer == peer && end.ids.local() == comm_id);
        self.ends.iter().find(|(_, end)| is_it(end)).map(|(token, _)| *token)
    }

    /// A message for one of our ends.
    pub fn hear(&mut self, peer: Ipv6Addr, mad: Mad) {
        let now = self.now();
        let Some(token) = self.find(peer, mad.remote_comm_id) else {
            return self.answer_for_nobody(peer, &mad);
        };
        let Some(end) = self.ends.get_mut(&token) else { return };
        let (Some(far), Some(connection)) = (&mut end.far, &mut end.connection) else { return };
        if !end.ids.admits(&mad) {
            return tracing::debug!("a message of another connection came from {peer}");
        }
        match far.exchange.received(&mad, now) {
            Heard::Again(Some(answer)) => self.send_abroad(peer, &answer),
            Heard::Again(None) => {}
            Heard::New => {
                let was_leaving = connection.state() == State::DreqSent;
                let step = connection.received(mad.message);
                self.take_peer_step(token, step, was_leaving);
                self.plan(token);
            }
        }
    }

    /// Whether a request came before: then it is answered as it was, or its peer told to wait. One that was held up on
    /// its way until its peer had said more is nothing.
    pub fn is_known(&mut self, peer: Ipv6Addr, question: &Mad) -> bool {
        let now = self.now();
        let mut ends = self.ends.values_mut();
        let asked = Some((question.local_comm_id, question.transaction_id));
        let found =
            ends.find(|end| end.far.as_ref().is_some_and(|far| far.peer == peer && far.asked == asked));
        let Some(end) = found else { return false };
        let Some(far) = &mut end.far else { return false };
        if !far.exchange.is_about(question) {
            return true;
        }
        let answer = match far.exchange.received(question, now) {
            Heard::Again(Some(answer)) => answer,
            _ => end.ids.mad(Message::Mra { received: Answered::Req, service_timeout: SERVICE_TIMEOUT }),
        };
        if matches!(question.message, Message::Req(_)) || !matches!(answer.message, Message::Mra { .. }) {
            self.send_abroad(peer, &answer);
        }
        true
    }

    /// Sends a message of a far end; whether it is one.
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

    /// Has a far end's timer ring when it must say something again.
    fn plan(&mut self, token: Token) {
        let due = self.ends.get(&token).and_then(|end| end.far.as_ref()?.exchange.due());
        if let (Some(due), Some(abroad)) = (due, &self.abroad) {
            self.add_timer(abroad.began + due, token);
        }
    }

    /// Says again what a far end's peer has not answered.
    pub fn repeat(&mut self, token: Token) {
        let now = self.now();
        let Some(end) = self.ends.get_mut(&token) else { return };
        let Some(far) = &mut end.far else { return };
        match far.exchange.tick(now) {
            Due::Nothing => {}
            Due::Again(mad) => {
                let peer = far.peer;
                self.send_abroad(peer, &mad);
            }
            Due::Unanswered => {
                let step =
                    end.connection.as_mut().map(|connection| connection.timed_out()).unwrap_or_default();
                return self.take_step(token, step);
            }
        }
        self.plan(token);
    }
}

/// Hands a message on; whether it was taken.
fn hand(socket: &OwnedFd, foreign: &Foreign) -> bool {
    send(socket, &foreign.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}
