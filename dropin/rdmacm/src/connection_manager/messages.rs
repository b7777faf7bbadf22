//! Messages between connected endpoints: sending, receiving, and timers.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_verbs::with_sources;
use farcall_wire::cm::{CommunicationIds, Connection, Event, Message, State, Step};
use rustix::event::epoll;

use super::{CmEndpoint, ConnectionManager};
use crate::address;
use crate::errno::{Errno, refused};
use crate::event_queue::QueuedEvent;
use crate::local_socket::{Arrived, send_message};
use crate::port::{Reached, reach};
use crate::token::{ELECTION, Token};

/// Timeout of the reply to a request: the value of the kernel's connection manager.
const REPLY_TIMEOUT: Duration = Duration::from_secs(68);
/// Timeout of the reply to a DREQ.
const DREP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a queue pair stays in TimeWait after its connection.
const TIMEWAIT: Duration = Duration::from_secs(1);
/// Maximum time for which a request waits until its destination listens. Between hosts a request takes longer to arrive
/// than on one host, and some programs rely on it: they first notify the peer by other means that it may connect, and
/// listen afterwards.
const LISTEN_WAIT: Duration = Duration::from_millis(200);
/// Delay between the end of a connection and the event that the peer ended it. Between hosts the DREQ arrives after
/// the last message. Some programs close their endpoint on that event without polling for that message (libfabric's
/// rxm polls for messages first, and then for events).
const DISCONNECT_REPORT_DELAY: Duration = Duration::from_millis(50);
/// Interval between attempts to reach a listener that is busy, or does not exist yet.
const RETRY_AFTER: Duration = Duration::from_millis(10);

impl ConnectionManager {
    /// Sends a request, now or when the listener can accept it.
    pub fn send_request(
        &mut self,
        token: Token,
        connection: Connection,
        message: Message,
    ) -> Result<(), Errno> {
        let end = self.end(token)?;
        end.connection = Some(connection);
        let local = self.comm_id(token);
        self.end(token)?.ids = CommunicationIds::for_requester(local);
        let now = Instant::now();
        self.wait_until(token, Some(now + REPLY_TIMEOUT));
        if !self.send_remote(token, &message) {
            self.end(token)?.unsent = Some((message, now));
            self.try_to_reach(token);
        }
        Ok(())
    }

    fn try_to_reach(&mut self, token: Token) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let Some((message, since)) = end.unsent.take() else { return };
        let (space, to) = match &message {
            Message::Req(request) => (request.route.port_space, request.route.to),
            Message::SidrReq(request) => (request.route.port_space, request.route.to),
            _ => return,
        };
        let Some(socket) = &end.socket else { return };
        match reach(socket, space, &to) {
            Ok(Reached::Yes) if may_connect(socket, &to.to_string()) => {
                let sent = send_message(socket, &end.ids.mad(message));
                let watched = sent && self.watch_end(token).is_ok();
                if !watched {
                    self.hung_up(token);
                }
            }
            Ok(reached)
                if reached == Reached::Busy
                    || reached == Reached::NoListener && since.elapsed() < LISTEN_WAIT =>
            {
                end.unsent = Some((message, since));
                self.timers.add(Instant::now() + RETRY_AFTER, token);
            }
            Ok(reached) => {
                if reached == Reached::NoListener && !address::is_local(&to) {
                    crate::complain(format_args!(
                        "no process that shares FARCALL_SOCKET_DIR listens at {to}"
                    ));
                }
                let step = end.connection.as_mut().map(Connection::refused).unwrap_or_default();
                self.apply_step(token, step);
            }
            Err(error) => {
                tracing::debug!("cannot reach {to}: error {error}");
                self.hung_up(token);
            }
        }
    }

    /// Watches an endpoint's socket.
    pub(super) fn watch_end(&self, token: Token) -> Result<(), Errno> {
        let socket = self
            .ends
            .get(&token)
            .and_then(|end| end.socket.as_ref())
            .ok_or_else(|| refused(libc::ENOTCONN, format_args!("the connection has ended")))?;
        self.watch(socket.as_fd(), token)
    }

    /// Sends the message of a call. If the peer has exited, an event reports that.
    pub(super) fn send(&mut self, token: Token, message: Message) {
        if self.send_remote(token, &message) {
            return self.watch_time(token);
        }
        let is_sent = self.ends.get_mut(&token).is_some_and(|CmEndpoint { socket, ids, .. }| {
            socket.as_ref().is_some_and(|socket| send_message(socket, &ids.mad(message)))
        });
        if !is_sent {
            tracing::debug!("a peer is gone");
        }
        self.watch_time(token);
    }

    /// Sends the message and queues the event of a step of an endpoint's connection.
    pub fn apply_step(&mut self, token: Token, step: Step) {
        if let Some(message) = step.message {
            self.send(token, message);
        }
        if let Some(event) = step.event {
            self.queue_event(token, QueuedEvent::Connection(event));
        }
        self.finish(token);
    }

    /// Like [`ConnectionManager::apply_step`], for a peer's action: the end of the connection is reported after a
    /// delay.
    pub(super) fn apply_peer_step(&mut self, token: Token, mut step: Step, was_leaving: bool) {
        if step.event == Some(Event::Disconnected) && !was_leaving {
            step.event = None;
            let disconnect_report = Instant::now() + DISCONNECT_REPORT_DELAY;
            if let Some(end) = self.ends.get_mut(&token) {
                end.disconnect_report = Some(disconnect_report);
            }
            self.timers.add(disconnect_report, token);
        }
        self.apply_step(token, step);
    }

    /// Closes the socket of a connection that has ended, and sets its timer. An endpoint without a program is removed.
    fn finish(&mut self, token: Token) {
        self.watch_time(token);
        self.update_journal(token);
        let Some(end) = self.ends.get_mut(&token) else { return };
        let is_over =
            matches!(end.connection.as_ref().map(Connection::state), Some(State::Closed | State::TimeWait));
        if is_over {
            let (socket, is_orphaned) =
                (end.socket.take(), end.remote_end.as_ref().is_some_and(|remote_end| remote_end.is_orphaned));
            self.close(socket);
            if is_orphaned {
                self.drop_end(token);
            }
        }
    }

    /// Closes a socket, even if a forked child still holds it. The peer reads the messages sent before, and then the
    /// end of the stream.
    pub(super) fn close(&self, socket: Option<OwnedFd>) {
        if let Some(socket) = socket {
            self.end_socket(&socket);
        }
    }

    /// Ends a socket that is dropped next.
    pub(super) fn end_socket(&self, socket: &OwnedFd) {
        // Not watched if it was never connected.
        let _ = epoll::delete(&self.poll, socket);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }

    /// Sets an endpoint's timer according to its state.
    fn watch_time(&mut self, token: Token) {
        let Some(end) = self.ends.get(&token) else { return };
        let timeout = match end.connection.as_ref().map(Connection::state) {
            Some(State::DreqSent) => DREP_TIMEOUT,
            Some(State::TimeWait) => TIMEWAIT,
            Some(State::ReqSent | State::SidrSent) => return,
            _ => return self.wait_until(token, None),
        };
        self.wait_until(token, Some(Instant::now() + timeout));
    }

    pub(super) fn wait_until(&mut self, token: Token, deadline: Option<Instant>) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let before = std::mem::replace(&mut end.deadline, deadline);
        before.into_iter().for_each(|before| self.timers.cancel(before, token));
        deadline.into_iter().for_each(|deadline| self.timers.add(deadline, token));
    }

    /// Returns when the next timer expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Handles expired timers.
    pub fn run_timers(&mut self, now: Instant) {
        while let Some(token) = self.timers.pop_expired(now) {
            if self.accepted.contains_key(&token) {
                self.drop_accepted(token);
                continue;
            }
            if token == ELECTION {
                self.elect();
                continue;
            }
            self.run_timer(token, now);
        }
    }

    fn run_timer(&mut self, token: Token, now: Instant) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let is_due = |timer: Option<Instant>| timer.is_some_and(|due| due <= now);
        if is_due(end.disconnect_report) {
            return self.report_disconnect(token);
        }
        if !is_due(end.deadline) {
            if end.remote_end.is_some() {
                return self.repeat(token);
            }
            return self.try_to_reach(token);
        }
        end.deadline = None;
        end.unsent = None;
        let step = end.connection.as_mut().map(Connection::timed_out).unwrap_or_default();
        self.apply_step(token, step);
    }

    /// Handles a readable socket.
    pub fn readable(&mut self, token: Token) {
        if self.remote.is_some() && self.handle_remote_event(token) {
        } else if self.accepted.contains_key(&token) {
            self.receive_request(token);
        } else if self.ends.get(&token).is_some_and(|end| end.listening.is_some()) {
            self.accept_all(token);
        } else {
            self.receive_from_peer(token);
        }
    }

    fn receive_from_peer(&mut self, token: Token) {
        loop {
            let Some(end) = self.ends.get_mut(&token) else { return };
            let (Some(socket), Some(connection)) = (&end.socket, &mut end.connection) else { return };
            let was_leaving = connection.state() == State::DreqSent;
            let step = match Arrived::at(socket) {
                Arrived::Nothing => return,
                Arrived::Message(mad) if end.ids.matches(&mad) => connection.received(mad.message),
                // A socket has only one connection.
                _ => connection.peer_closed(),
            };
            // Closing the socket ends the connection in every state.
            self.apply_peer_step(token, step, was_leaving);
        }
    }

    fn hung_up(&mut self, token: Token) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let step = end.connection.as_mut().map(Connection::peer_closed).unwrap_or_default();
        self.apply_step(token, step);
    }
}

/// Returns whether the software RNIC would authorize a connection with the listener at the other end. Prints the
/// reason to standard error if not.
fn may_connect(socket: &OwnedFd, peer: &str) -> bool {
    let judged = farcall_softnic::check_peer(socket.as_fd(), peer);
    if let Err(error) = &judged {
        crate::complain(format_args!("{}", with_sources(&error)));
    }
    judged.is_ok()
}
