//! The connection manager of this process: its endpoints, and the events that programs have not received yet. One lock
//! guards all of it, because none of its operations is frequent.

mod messages;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farcall_wire::cm::{
    CommunicationIds, Connection, Event, IpRoute, Message, RejectedMessage, Rejection, Request, ServiceReply,
    ServiceRequest, Step, WrongState,
};
use rustix::event::epoll;

use crate::errno::{Errno, invalid, refused, system};
use crate::id::CmIdObject;
use crate::listener::{Accepted, Listening, Slot};
use crate::port::Port;
use crate::remote::{RemoteCm, RemoteEndpoint};
use crate::shared::Published;
pub use messages::send_message;

/// Number of an object in this process: an endpoint, an accepted socket or an event queue.
pub type Token = u64;

/// Address of a program's identifier. Only calls by the program dereference it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Id(pub *mut CmIdObject);

// SAFETY: only an address. The code that dereferences it ensures that the object is live.
unsafe impl Send for Id {}

/// An event that the program has not received yet.
pub enum QueuedEvent {
    AddressResolved,
    AddressError(Errno),
    RouteResolved,
    /// A peer's request arrived; `end` is the new endpoint that will reply to it.
    Request {
        end: Token,
        _slot: Slot,
    },
    Connection(Event),
}

/// A peer's request.
pub enum IncomingRequest {
    Connection(Request),
    Service(ServiceRequest),
}

impl IncomingRequest {
    /// Returns `None` for a message that is not a request.
    pub fn of(message: Message) -> Option<Self> {
        match message {
            Message::Req(request) => Some(Self::Connection(request)),
            Message::SidrReq(request) => Some(Self::Service(request)),
            _ => None,
        }
    }

    /// Returns the addresses of the request.
    pub fn route(&self) -> &IpRoute {
        match self {
            Self::Connection(request) => &request.route,
            Self::Service(request) => &request.route,
        }
    }

    /// Returns the message that rejects it.
    pub fn refused(&self, reason: u16, status: u8) -> Message {
        let private_data = Vec::new();
        match self {
            Self::Connection(_) => {
                Message::Rej(Rejection { rejected: RejectedMessage::Req, reason, private_data })
            }
            Self::Service(request) => {
                let service_id = request.route.service_id();
                Message::SidrRep(ServiceReply { status, qp_num: 0, service_id, qkey: 0, private_data })
            }
        }
    }
}

/// An endpoint: the connection manager's state of an `rdma_cm_id`.
#[derive(Default)]
pub struct CmEndpoint {
    /// `None` until the program has received the event of the peer's request that created the endpoint.
    pub id: Option<Id>,
    /// The queue for its events.
    pub queue: Token,
    pub socket: Option<OwnedFd>,
    /// The port of its address; `None` if it shares another endpoint's.
    pub port: Option<Port>,
    /// A listener's socket for other network namespaces.
    pub published: Option<Published>,
    pub listening: Option<Listening>,
    pub connection: Option<Connection>,
    /// The communication IDs of its connection.
    pub ids: CommunicationIds,
    /// Set if its peer is on another host.
    pub remote_end: Option<RemoteEndpoint>,
    pub incoming: Option<IncomingRequest>,
    /// A request that no listener has accepted yet, and the time of its first attempt.
    unsent: Option<(Message, Instant)>,
    deadline: Option<Instant>,
    /// When to notify the program that the peer ended the connection.
    disconnect_report: Option<Instant>,
}

impl CmEndpoint {
    pub fn new(id: Option<Id>, queue: Token) -> Self {
        Self { id, queue, ..Self::default() }
    }
}

/// Queued events of one channel, whose eventfd counts them.
struct Queue {
    count: OwnedFd,
    waiting: VecDeque<(Token, QueuedEvent)>,
}

/// An event that is being returned to the program.
pub struct DeliveredEvent {
    pub id: Id,
    pub notice: QueuedEvent,
}

pub struct ConnectionManager {
    pub(crate) ends: HashMap<Token, CmEndpoint>,
    pub(crate) accepted: HashMap<Token, Accepted>,
    /// State for other hosts, once an endpoint needs it.
    pub(crate) remote: Option<RemoteCm>,
    queues: HashMap<Token, Queue>,
    timers: BTreeSet<(Instant, Token)>,
    last_token: Token,
    poll: OwnedFd,
    wake: Arc<OwnedFd>,
}

/// Token of the descriptor that wakes the thread.
pub const WAKE: Token = 0;

impl ConnectionManager {
    pub fn new(poll: OwnedFd, wake: Arc<OwnedFd>) -> Self {
        Self {
            ends: HashMap::new(),
            accepted: HashMap::new(),
            remote: None,
            queues: HashMap::new(),
            timers: BTreeSet::new(),
            last_token: WAKE,
            poll,
            wake,
        }
    }

    pub(crate) fn token(&mut self) -> Token {
        self.last_token += 1;
        self.last_token
    }

    /// Adds a queue of events, counted by an eventfd.
    pub fn add_queue(&mut self, count: OwnedFd) -> Token {
        let token = self.token();
        self.queues.insert(token, Queue { count, waiting: VecDeque::new() });
        token
    }

    pub fn remove_queue(&mut self, token: Token) {
        self.queues.remove(&token);
    }

    pub fn add_end(&mut self, end: CmEndpoint) -> Token {
        let token = self.token();
        self.ends.insert(token, end);
        token
    }

    /// # Errors
    /// Returns `ENODEV` if the endpoint does not belong to this process: it was inherited by a fork.
    pub fn end(&mut self, token: Token) -> Result<&mut CmEndpoint, Errno> {
        self.ends
            .get_mut(&token)
            .ok_or_else(|| refused(libc::ENODEV, format_args!("the identifier is one of the parent process")))
    }

    /// Applies one step to an endpoint's connection, and sends the message that `step` returns, if any.
    ///
    /// # Errors
    /// Returns `EINVAL` without a connection, or if its state does not permit the step.
    pub fn step(
        &mut self,
        token: Token,
        step: impl FnOnce(&mut Connection) -> Result<Option<Message>, WrongState>,
    ) -> Result<(), Errno> {
        let connection = self.end(token)?.connection.as_mut();
        let connection = connection.ok_or_else(|| invalid("no connection is requested or pending"))?;
        let message = step(connection).map_err(invalid)?;
        self.apply_step(token, Step { message, event: None });
        Ok(())
    }

    /// Removes an endpoint, its queued events, and the accepted sockets of a listener.
    ///
    /// An endpoint that must still notify its peer remains until that is done.
    pub fn remove_end(&mut self, token: Token) {
        if !self.begin_disconnect(token) {
            self.drop_end(token);
        }
    }

    /// Removes an endpoint whose request the program has not received yet, and the event for it.
    pub(crate) fn remove_end_and_event(&mut self, token: Token) {
        if let Some(queue) = self.ends.get(&token).map(|end| end.queue) {
            let is_about =
                |_, notice: &QueuedEvent| matches!(notice, QueuedEvent::Request { end, .. } if *end == token);
            drop(self.take_matching(queue, is_about));
        }
        self.remove_end(token);
    }

    fn drop_end(&mut self, token: Token) {
        let Some(end) = self.ends.remove(&token) else { return };
        self.cancel_timer(token, end.deadline);
        self.close(end.socket);
        if let Some(published) = &end.published {
            self.end_socket(&published.socket);
        }
        self.drop_events(end.queue, token);
        let accepted = self.accepted.iter().filter(|(_, accepted)| accepted.listener == token);
        let tokens: Vec<Token> = accepted.map(|(token, _)| *token).collect();
        for token in tokens {
            self.drop_accepted(token);
        }
    }

    /// Moves an endpoint and its events to another channel.
    pub fn migrate(&mut self, token: Token, queue: Token) -> Result<(), Errno> {
        let before = std::mem::replace(&mut self.end(token)?.queue, queue);
        let mut moved = vec![token];
        let of_ends = self.queues.get(&before).into_iter().flat_map(|queue| &queue.waiting);
        moved.extend(of_ends.filter_map(|(of, notice)| match notice {
            QueuedEvent::Request { end, .. } if *of == token => Some(*end),
            _ => None,
        }));
        for end in &moved[1..] {
            if let Some(end) = self.ends.get_mut(end) {
                end.queue = queue;
            }
        }
        for (of, notice) in self.take_matching(before, |of, _| moved.contains(&of)) {
            self.push(queue, of, notice);
        }
        Ok(())
    }

    /// Watches a socket for readability.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn watch(&self, socket: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, socket, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))
    }

    fn push(&mut self, queue: Token, of: Token, notice: QueuedEvent) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.waiting.push_back((of, notice));
            // Never blocks: the count is far below the maximum of an eventfd.
            let _ = rustix::io::write(&queue.count, &1_u64.to_ne_bytes());
        }
    }

    /// Queues an event of an endpoint.
    pub fn queue_event(&mut self, token: Token, notice: QueuedEvent) {
        if let Some(queue) = self.ends.get(&token).map(|end| end.queue) {
            self.push(queue, token, notice);
        }
    }

    fn take_matching(
        &mut self,
        queue: Token,
        is_wanted: impl Fn(Token, &QueuedEvent) -> bool,
    ) -> Vec<(Token, QueuedEvent)> {
        let Some(queue) = self.queues.get_mut(&queue) else { return Vec::new() };
        let waiting = std::mem::take(&mut queue.waiting);
        let mut taken = Vec::new();
        for (of, notice) in waiting {
            if is_wanted(of, &notice) {
                taken.push((of, notice));
            } else {
                queue.waiting.push_back((of, notice));
            }
        }
        for _ in &taken {
            decrement(&queue.count);
        }
        taken
    }

    /// Drops the queued events of an endpoint, together with the new endpoints in them.
    pub(crate) fn drop_events(&mut self, queue: Token, token: Token) {
        for (_, notice) in self.take_matching(queue, |of, _| of == token) {
            if let QueuedEvent::Request { end, .. } = notice {
                self.remove_end(end);
            }
        }
    }

    /// Returns whether an endpoint has queued events.
    pub fn has_queued_event(&self, token: Token) -> bool {
        let queue = self.ends.get(&token).and_then(|end| self.queues.get(&end.queue));
        queue.is_some_and(|queue| queue.waiting.iter().any(|(of, _)| *of == token))
    }

    /// Queues the event that the peer ended the connection, unless that was done: after the delay, or when the program
    /// ends the connection as well.
    pub fn report_disconnect(&mut self, token: Token) {
        if self.ends.get_mut(&token).is_some_and(|end| end.disconnect_report.take().is_some()) {
            self.queue_event(token, QueuedEvent::Connection(Event::Disconnected));
        }
    }

    /// Removes the next event of a channel. The program must acknowledge it on the endpoint's identifier.
    pub fn take(&mut self, queue: Token) -> Option<DeliveredEvent> {
        loop {
            let queue = self.queues.get_mut(&queue)?;
            let (token, notice) = queue.waiting.pop_front()?;
            decrement(&queue.count);
            if let Some(id) = self.ends.get(&token).and_then(|end| end.id) {
                // SAFETY: an identifier is freed only after `remove_end` has removed its endpoint, which requires the
                // lock that is held here. The endpoint is still present, so its identifier is live.
                unsafe { &*id.0 }.reported.handed_out();
                return Some(DeliveredEvent { id, notice });
            }
        }
    }
}

/// Decrements a semaphore, which must not be zero.
fn decrement(count: &OwnedFd) {
    let _ = rustix::io::read(count, &mut [0_u8; 8]);
}
