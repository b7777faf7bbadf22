//! The connection manager of this process: its endpoints, and the events that programs have not received yet. One lock
//! guards all of it, because none of its operations is frequent.

mod disconnect;
mod limits;
mod messages;
mod remote_messages;
mod requests;

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farcall_wire::cm::{CommunicationIds, Connection, Event, Message, Step, WrongState};
use rustix::event::epoll;

use crate::errno::{Errno, invalid, refused, system};
use crate::event_queue::{EventQueues, QueuedEvent};
use crate::id::CmIdObject;
use crate::listener::{IncomingRequest, Listening};
use crate::port::Port;
use crate::remote::{RemoteCm, RemoteEndpoint};
use crate::shared::Published;
use crate::timers::Timers;
use crate::token::{Token, WAKE};
use requests::Accepted;

/// Address of a program's identifier. Only calls by the program dereference it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Id(pub *mut CmIdObject);

// SAFETY: only an address. The code that dereferences it ensures that the object is live.
unsafe impl Send for Id {}

/// An endpoint: the connection manager's state of an `rdma_cm_id`.
#[derive(Default)]
pub struct CmEndpoint {
    /// `None` until the program has received the event of the peer's request that created the endpoint.
    id: Option<Id>,
    /// The queue for its events.
    queue: Token,
    socket: Option<OwnedFd>,
    /// The port of its address; `None` if it shares another endpoint's.
    port: Option<Port>,
    /// A listener's socket for other network namespaces.
    published: Option<Published>,
    listening: Option<Listening>,
    connection: Option<Connection>,
    /// The communication IDs of its connection.
    ids: CommunicationIds,
    /// Set if its peer is on another host.
    remote_end: Option<RemoteEndpoint>,
    incoming: Option<IncomingRequest>,
    /// A request that no listener has accepted yet, and the time of its first attempt.
    unsent: Option<(Message, Instant)>,
    deadline: Option<Instant>,
    /// When to notify the program that the peer ended the connection.
    disconnect_report: Option<Instant>,
}

impl CmEndpoint {
    fn new(queue: Token) -> Self {
        Self { queue, ..Self::default() }
    }

    /// Sets the program's identifier.
    pub fn set_id(&mut self, id: Id) {
        self.id = Some(id);
    }

    /// Sets the socket of a bound endpoint, and its port unless that belongs to another endpoint.
    pub fn bind(&mut self, socket: OwnedFd, port: Option<Port>) {
        (self.socket, self.port) = (Some(socket), port);
    }

    /// Prepares the endpoint for a peer on another host.
    pub fn set_remote_peer(&mut self, peer: Ipv6Addr) {
        self.remote_end = Some(RemoteEndpoint::new(peer));
    }

    pub fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// Removes and returns the peer's request.
    pub fn take_request(&mut self) -> Option<IncomingRequest> {
        self.incoming.take()
    }
}

/// An event that is being returned to the program.
pub struct DeliveredEvent {
    pub id: Id,
    pub notice: QueuedEvent,
}

pub struct ConnectionManager {
    ends: HashMap<Token, CmEndpoint>,
    accepted: HashMap<Token, Accepted>,
    /// State for other hosts, once an endpoint needs it.
    remote: Option<RemoteCm>,
    queues: EventQueues,
    timers: Timers,
    last_token: Token,
    poll: OwnedFd,
}

impl ConnectionManager {
    pub fn new(poll: OwnedFd, wake: Arc<OwnedFd>) -> Self {
        Self {
            ends: HashMap::new(),
            accepted: HashMap::new(),
            remote: None,
            queues: EventQueues::default(),
            timers: Timers::new(wake),
            last_token: WAKE,
            poll,
        }
    }

    fn token(&mut self) -> Token {
        self.last_token += 1;
        self.last_token
    }

    /// Adds a queue of events, counted by an eventfd.
    pub fn add_queue(&mut self, count: OwnedFd) -> Token {
        let token = self.token();
        self.queues.add(token, count);
        token
    }

    pub fn remove_queue(&mut self, token: Token) {
        self.queues.remove(token);
    }

    /// Creates an endpoint whose events are queued in `queue`.
    pub fn create_end(&mut self, queue: Token) -> Token {
        self.add_end(CmEndpoint::new(queue))
    }

    fn add_end(&mut self, end: CmEndpoint) -> Token {
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
    fn remove_end_and_event(&mut self, token: Token) {
        if let Some(queue) = self.ends.get(&token).map(|end| end.queue) {
            let is_about =
                |_, notice: &QueuedEvent| matches!(notice, QueuedEvent::Request { end, .. } if *end == token);
            drop(self.queues.take_matching(queue, is_about));
        }
        self.remove_end(token);
    }

    fn drop_end(&mut self, token: Token) {
        let Some(end) = self.ends.remove(&token) else { return };
        end.deadline.into_iter().for_each(|deadline| self.timers.cancel(deadline, token));
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
        moved.extend(self.queues.requests_of(before, token));
        for end in &moved[1..] {
            if let Some(end) = self.ends.get_mut(end) {
                end.queue = queue;
            }
        }
        for (of, notice) in self.queues.take_matching(before, |of, _| moved.contains(&of)) {
            self.queues.push(queue, of, notice);
        }
        Ok(())
    }

    /// Watches a socket for readability.
    ///
    /// # Errors
    /// Returns the kernel's error.
    fn watch(&self, socket: BorrowedFd<'_>, token: Token) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, socket, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))
    }

    /// Queues an event of an endpoint.
    pub fn queue_event(&mut self, token: Token, notice: QueuedEvent) {
        if let Some(queue) = self.ends.get(&token).map(|end| end.queue) {
            self.queues.push(queue, token, notice);
        }
    }

    /// Drops the queued events of an endpoint, together with the new endpoints in them.
    fn drop_events(&mut self, queue: Token, token: Token) {
        for (_, notice) in self.queues.take_matching(queue, |of, _| of == token) {
            if let QueuedEvent::Request { end, .. } = notice {
                self.remove_end(end);
            }
        }
    }

    /// Returns whether an endpoint has queued events.
    pub fn has_queued_event(&self, token: Token) -> bool {
        self.ends.get(&token).is_some_and(|end| self.queues.contains(end.queue, token))
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
            let (token, notice) = self.queues.pop(queue)?;
            if let Some(id) = self.ends.get(&token).and_then(|end| end.id) {
                // SAFETY: an identifier is freed only after `remove_end` has removed its endpoint, which requires the
                // lock that is held here. The endpoint is still present, so its identifier is live.
                unsafe { &*id.0 }.reported.handed_out();
                return Some(DeliveredEvent { id, notice });
            }
        }
    }
}
