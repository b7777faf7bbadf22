//! Listening ends: who comes, and what he wants.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_cm::{Connection, Message, Rejection, Request, ServiceReply, ServiceRequest, reason};
use rustix::net::{SocketFlags, accept_with};

use crate::world::{Asked, End, Heard, Notice, Token, World, hear, say};

/// How long a stranger may keep silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Strangers at a time.
const STRANGERS_MAX: usize = 1024;

/// The place of a request in a backlog.
#[derive(Clone, Default)]
pub struct Slot(Arc<()>);

/// What listens.
pub struct Listening {
    /// Requests that the program may leave unheard.
    backlog: usize,
    /// The first of the slots; the others are the requests that it has not heard of.
    slots: Slot,
    /// Whether IPv4 is not for it.
    is_v6_only: bool,
    /// Whether it is asked for queue pairs that serve datagrams, not for connections.
    is_datagram: bool,
}

impl Listening {
    pub fn new(backlog: usize, is_v6_only: bool, is_datagram: bool) -> Self {
        Self { backlog, slots: Slot::default(), is_v6_only, is_datagram }
    }

    fn is_full(&self) -> bool {
        Arc::strong_count(&self.slots.0) > self.backlog
    }
}

/// Who came to one of a listener's sockets.
fn newcomer(end: &End) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let sockets = [end.socket.as_ref(), end.published.as_ref().map(|published| &published.socket)];
    sockets.into_iter().flatten().find_map(|socket| accept_with(socket, flags).ok())
}

/// Somebody who came and has not said what he wants.
pub struct Stranger {
    pub listener: Token,
    socket: OwnedFd,
    deadline: Instant,
}

impl World {
    /// Lets in who comes.
    pub fn welcome(&mut self, listener: Token) {
        while let Some(socket) = self.ends.get(&listener).and_then(newcomer) {
            let is_kin = farcall_softnic::check_peer(socket.as_fd(), "a caller").is_ok();
            if self.strangers.len() >= STRANGERS_MAX || !is_kin {
                continue;
            }
            let token = self.token();
            if self.watch(socket.as_fd(), token).is_err() {
                continue;
            }
            let deadline = Instant::now() + SILENCE_MAX;
            self.strangers.insert(token, Stranger { listener, socket, deadline });
            self.add_timer(deadline, token);
        }
    }

    fn remove_stranger(&mut self, token: Token) -> Option<Stranger> {
        let stranger = self.strangers.remove(&token)?;
        self.rest(token, Some(stranger.deadline));
        Some(stranger)
    }

    /// Sends a stranger away.
    pub fn dismiss(&mut self, token: Token) {
        let socket = self.remove_stranger(token).map(|stranger| stranger.socket);
        self.close(socket);
    }

    /// Hears what a stranger wants.
    pub fn hear_stranger(&mut self, token: Token) {
        let Some(heard) = self.strangers.get(&token).map(|stranger| hear(&stranger.socket)) else { return };
        let asked = match heard {
            Heard::Nothing => return,
            Heard::Message(Message::Req(request)) => Some(Asked::Connection(request)),
            Heard::Message(Message::SidrReq(request)) => Some(Asked::Service(request)),
            Heard::Message(_) | Heard::End => None,
        };
        let Some(stranger) = self.remove_stranger(token) else { return };
        let end = self.ends.get(&stranger.listener);
        let listening = end.and_then(|end| Some((end.queue, end.listening.as_ref()?)));
        let (Some(asked), Some((queue, listening))) = (asked, listening) else {
            return self.close(Some(stranger.socket));
        };
        if let Some(refusal) = listening.refusal(&asked) {
            say(&stranger.socket, &refusal);
            return self.close(Some(stranger.socket));
        }
        let slot = listening.slots.clone();
        let connection = match &asked {
            Asked::Connection(_) => Connection::asked(),
            Asked::Service(_) => Connection::looked_up(),
        };
        // The socket keeps its number: it is watched under it.
        let mut made = End::new(None, queue);
        made.socket = Some(stranger.socket);
        made.connection = Some(connection);
        made.asked = Some(asked);
        self.ends.insert(token, made);
        self.tell(stranger.listener, Notice::Asked { end: token, _slot: slot });
    }
}

impl Listening {
    /// What to answer to a request that is not for this listener, or that it has no room for.
    fn refusal(&self, asked: &Asked) -> Option<Message> {
        let (to, is_datagram) = match asked {
            Asked::Connection(Request { to, .. }) => (to, false),
            Asked::Service(ServiceRequest { to, .. }) => (to, true),
        };
        let is_for_us = is_datagram == self.is_datagram && !(self.is_v6_only && to.is_ipv4());
        if is_for_us && !self.is_full() {
            return None;
        }
        Some(if is_datagram {
            let status = if is_for_us { reason::SIDR_REJECT } else { reason::SIDR_UNSUPPORTED };
            Message::SidrRep(ServiceReply {
                status,
                qp_num: 0,
                qkey: 0,
                gid: [0; 16],
                private_data: Vec::new(),
            })
        } else {
            let reason = if is_for_us { reason::CONSUMER_DEFINED } else { reason::INVALID_SERVICE_ID };
            Message::Rej(Rejection { reason, private_data: Vec::new() })
        })
    }
}
