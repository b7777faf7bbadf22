//! Listening ends: connections accepted, and the requests that come over them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_wire::cm::{Connection, Message, Rejection, Request, ServiceReply, ServiceRequest, reason};
use rustix::net::{SocketFlags, accept_with};

use crate::connection_manager::{
    ConnectionManager, End, IncomingRequest, Notice, Received, Token, receive, send_message,
};

/// How long a request may take to come after its connection was accepted.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Accepted connections without a request, at a time.
const ACCEPTED_MAX: usize = 1024;

/// The place of a request in a backlog.
#[derive(Clone, Default)]
pub struct Slot(Arc<()>);

/// What listens.
pub struct Listening {
    /// Requests that may wait for the program.
    backlog: usize,
    /// The first of the slots; the others are the requests that it has not received of.
    slots: Slot,
    /// Whether IPv4 is not for it.
    is_v6_only: bool,
    /// Whether it is incoming for queue pairs that serve datagrams, not for connections.
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

/// The next connection at one of a listener's sockets.
fn accept_next(end: &End) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let sockets = [end.socket.as_ref(), end.published.as_ref().map(|published| &published.socket)];
    sockets.into_iter().flatten().find_map(|socket| accept_with(socket, flags).ok())
}

/// An accepted connection whose request has not come.
pub struct Accepted {
    pub listener: Token,
    socket: OwnedFd,
    deadline: Instant,
}

impl ConnectionManager {
    /// Accepts the connections that came.
    pub fn accept_all(&mut self, listener: Token) {
        while let Some(socket) = self.ends.get(&listener).and_then(accept_next) {
            let may_connect = farcall_softnic::check_peer(socket.as_fd(), "a caller").is_ok();
            if self.accepted.len() >= ACCEPTED_MAX || !may_connect {
                continue;
            }
            let token = self.token();
            if self.watch(socket.as_fd(), token).is_err() {
                continue;
            }
            let deadline = Instant::now() + REQUEST_TIMEOUT;
            self.accepted.insert(token, Accepted { listener, socket, deadline });
            self.add_timer(deadline, token);
        }
    }

    fn remove_accepted(&mut self, token: Token) -> Option<Accepted> {
        let accepted = self.accepted.remove(&token)?;
        self.cancel_timer(token, Some(accepted.deadline));
        Some(accepted)
    }

    /// Closes an accepted connection.
    pub fn drop_accepted(&mut self, token: Token) {
        let socket = self.remove_accepted(token).map(|accepted| accepted.socket);
        self.close(socket);
    }

    /// Receives the request of an accepted connection.
    pub fn receive_request(&mut self, token: Token) {
        let Some(received) = self.accepted.get(&token).map(|accepted| receive(&accepted.socket)) else {
            return;
        };
        let incoming = match received {
            Received::Nothing => return,
            Received::Message(Message::Req(request)) => Some(IncomingRequest::Connection(request)),
            Received::Message(Message::SidrReq(request)) => Some(IncomingRequest::Service(request)),
            Received::Message(_) | Received::Closed => None,
        };
        let Some(accepted) = self.remove_accepted(token) else { return };
        let end = self.ends.get(&accepted.listener);
        let listening = end.and_then(|end| Some((end.queue, end.listening.as_ref()?)));
        let (Some(incoming), Some((queue, listening))) = (incoming, listening) else {
            return self.close(Some(accepted.socket));
        };
        if let Some(refusal) = listening.refusal(&incoming) {
            send_message(&accepted.socket, &refusal);
            return self.close(Some(accepted.socket));
        }
        let slot = listening.slots.clone();
        let connection = match &incoming {
            IncomingRequest::Connection(_) => Connection::requested(),
            IncomingRequest::Service(_) => Connection::service_requested(),
        };
        // The socket keeps its number: it is watched under it.
        let mut made = End::new(None, queue);
        made.socket = Some(accepted.socket);
        made.connection = Some(connection);
        made.incoming = Some(incoming);
        self.ends.insert(token, made);
        self.tell(accepted.listener, Notice::Request { end: token, _slot: slot });
    }
}

impl Listening {
    /// What to answer to a request that is not for this listener, or that it has no room for.
    fn refusal(&self, incoming: &IncomingRequest) -> Option<Message> {
        let (to, is_datagram) = match incoming {
            IncomingRequest::Connection(Request { to, .. }) => (to, false),
            IncomingRequest::Service(ServiceRequest { to, .. }) => (to, true),
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
