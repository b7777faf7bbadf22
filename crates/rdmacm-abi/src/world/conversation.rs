//! What ends say and hear, and when: requests, answers, and what is due.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use farcall_cm::{Connection, Event, MESSAGE_BYTES_MAX, Message, State, Step};
use rustix::event::epoll;
use rustix::io::Errno as OsError;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Notice, Token, World};
use crate::address;
use crate::errno::Errno;
use crate::port::{Reached, reach};

/// How long a peer may take to answer a request: what the kernel's connection manager gives it, too.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(68);
/// How long a peer may take to agree that a connection is over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a queue pair rests after its connection.
const TIMEWAIT: Duration = Duration::from_secs(1);
/// How long somebody may be about to listen. Between hosts a request takes longer to come than here, and programs rely on it:
/// they tell their peer by other means to connect, then listen.
const GRACE: Duration = Duration::from_millis(200);
/// How much later than the end of a connection its program hears that the peer ended it. Between hosts word of the end takes longer
/// than the last message, and there are programs that close their end at the word without looking for that message (libfabric's
/// rxm: it looks for messages, then for words).
const FAREWELL_AFTER: Duration = Duration::from_millis(50);
/// When to try again to reach a listener that has no time, or is not there yet.
const RETRY_AFTER: Duration = Duration::from_millis(10);

impl World {
    /// Sends a request, now or when the listener has time.
    pub fn ask(&mut self, token: Token, connection: Connection, message: Message) -> Result<(), Errno> {
        let end = self.end(token)?;
        end.connection = Some(connection);
        let now = Instant::now();
        end.unsent = Some((message, now));
        self.wait_until(token, Some(now + ANSWER_TIMEOUT));
        self.try_to_reach(token);
        Ok(())
    }

    fn try_to_reach(&mut self, token: Token) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let Some((message, since)) = end.unsent.take() else { return };
        let (space, to) = match &message {
            Message::Req(request) => (request.port_space, request.to),
            Message::SidrReq(request) => (request.port_space, request.to),
            _ => return,
        };
        let Some(socket) = &end.socket else { return };
        match reach(socket, space, &to) {
            Ok(Reached::Yes) if is_kin(socket, &to.to_string()) => {
                let said = say(socket, &message);
                let watched = said && self.watch_end(token).is_ok();
                if !watched {
                    self.hung_up(token);
                }
            }
            Ok(reached)
                if reached == Reached::Busy || reached == Reached::Nobody && since.elapsed() < GRACE =>
            {
                end.unsent = Some((message, since));
                self.add_timer(Instant::now() + RETRY_AFTER, token);
            }
            Ok(reached) => {
                if reached == Reached::Nobody && !address::is_local(&to) {
                    crate::complain(format_args!("nobody who shares FARCALL_SOCKET_DIR listens at {to}"));
                }
                let step = end.connection.as_mut().map(Connection::refused).unwrap_or_default();
                self.follow(token, step);
            }
            Err(error) => {
                tracing::debug!("cannot reach {to}: error {error}");
                self.hung_up(token);
            }
        }
    }

    /// Watches an end's socket.
    pub fn watch_end(&self, token: Token) -> Result<(), Errno> {
        let socket = self.ends.get(&token).and_then(|end| end.socket.as_ref()).ok_or(libc::ENOTCONN)?;
        self.watch(socket.as_fd(), token)
    }

    /// Sends what a call leads to. A peer that is gone is heard of by an event.
    pub fn say(&mut self, token: Token, message: &Message) {
        let socket = self.ends.get(&token).and_then(|end| end.socket.as_ref());
        if !socket.is_some_and(|socket| say(socket, message)) {
            tracing::debug!("a peer is gone");
        }
        self.watch_time(token);
    }

    /// Does what follows from a step of an end's connection.
    pub fn follow(&mut self, token: Token, step: Step) {
        if let Some(message) = step.say {
            self.say(token, &message);
        }
        if let Some(event) = step.event {
            self.tell(token, Notice::Connection(event));
        }
        self.finish(token);
    }

    /// As [`World::follow`], for what a peer does: it does not have to hurry if it is the end.
    fn follow_peer(&mut self, token: Token, mut step: Step, was_leaving: bool) {
        if step.event == Some(Event::Disconnected) && !was_leaving {
            step.event = None;
            let farewell = Instant::now() + FAREWELL_AFTER;
            if let Some(end) = self.ends.get_mut(&token) {
                end.farewell = Some(farewell);
            }
            self.add_timer(farewell, token);
        }
        self.follow(token, step);
    }

    /// Closes the socket of a connection that is over, and sets its timer.
    fn finish(&mut self, token: Token) {
        self.watch_time(token);
        let Some(end) = self.ends.get_mut(&token) else { return };
        let is_over =
            matches!(end.connection.as_ref().map(Connection::state), Some(State::Closed | State::TimeWait));
        if is_over {
            let socket = end.socket.take();
            self.close(socket);
        }
    }

    /// Closes a socket, also where a forked child still holds it. The peer reads what it was told, then the end.
    pub(crate) fn close(&self, socket: Option<OwnedFd>) {
        if let Some(socket) = socket {
            self.end_socket(&socket);
        }
    }

    /// Ends a socket that is dropped next.
    pub(crate) fn end_socket(&self, socket: &OwnedFd) {
        // Not watched if it was never connected.
        let _ = epoll::delete(&self.poll, socket);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }

    /// Sets an end's timer for the state that it is in.
    fn watch_time(&mut self, token: Token) {
        let Some(end) = self.ends.get(&token) else { return };
        let timeout = match end.connection.as_ref().map(Connection::state) {
            Some(State::DreqSent) => LEAVE_TIMEOUT,
            Some(State::TimeWait) => TIMEWAIT,
            Some(State::ReqSent | State::SidrSent) => return,
            _ => return self.wait_until(token, None),
        };
        self.wait_until(token, Some(Instant::now() + timeout));
    }

    fn wait_until(&mut self, token: Token, deadline: Option<Instant>) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let before = std::mem::replace(&mut end.deadline, deadline);
        self.rest(token, before);
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, token));
            self.wake();
        }
    }

    pub(crate) fn add_timer(&mut self, deadline: Instant, token: Token) {
        self.timers.insert((deadline, token));
        self.wake();
    }

    pub(crate) fn rest(&mut self, token: Token, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.timers.remove(&(deadline, token));
        }
    }

    /// Has the thread look at the timers.
    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// When the thread must look again.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// Does what is due.
    pub fn run_timers(&mut self, now: Instant) {
        while let Some((deadline, token)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(deadline, token));
            if self.strangers.contains_key(&token) {
                self.dismiss(token);
                continue;
            }
            self.run_timer(token, now);
        }
    }

    fn run_timer(&mut self, token: Token, now: Instant) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let is_due = |timer: Option<Instant>| timer.is_some_and(|due| due <= now);
        if is_due(end.farewell) {
            return self.bid_farewell(token);
        }
        if !is_due(end.deadline) {
            return self.try_to_reach(token);
        }
        end.deadline = None;
        end.unsent = None;
        let step = end.connection.as_mut().map(Connection::timed_out).unwrap_or_default();
        self.follow(token, step);
    }

    /// A socket is readable.
    pub fn readable(&mut self, token: Token) {
        if self.strangers.contains_key(&token) {
            self.hear_stranger(token);
        } else if self.ends.get(&token).is_some_and(|end| end.listening.is_some()) {
            self.welcome(token);
        } else {
            self.hear_peer(token);
        }
    }

    fn hear_peer(&mut self, token: Token) {
        loop {
            let Some(end) = self.ends.get_mut(&token) else { return };
            let (Some(socket), Some(connection)) = (&end.socket, &mut end.connection) else { return };
            let was_leaving = connection.state() == State::DreqSent;
            let step = match hear(socket) {
                Heard::Nothing => return,
                Heard::Message(message) => connection.heard(message),
                Heard::End => connection.hung_up(),
            };
            // The end of a peer is the end of the connection, whatever its state, and of the socket.
            self.follow_peer(token, step, was_leaving);
        }
    }

    fn hung_up(&mut self, token: Token) {
        let Some(end) = self.ends.get_mut(&token) else { return };
        let step = end.connection.as_mut().map(Connection::hung_up).unwrap_or_default();
        self.follow(token, step);
    }
}

/// What a socket has.
pub enum Heard {
    Nothing,
    Message(Message),
    /// The peer is gone, or said what nobody understands.
    End,
}

/// Takes one message from a socket.
pub fn hear(socket: &OwnedFd) -> Heard {
    // One byte more than any message: a longer one is seen.
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    let mut is_told = false;
    loop {
        return match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Heard::End,
            Ok((len, _)) => match Message::decode(&bytes[..len.min(MESSAGE_BYTES_MAX)]) {
                Ok(message) if len <= MESSAGE_BYTES_MAX => Heard::Message(message),
                Ok(_) => Heard::End,
                Err(error) => {
                    tracing::debug!("{error}");
                    Heard::End
                }
            },
            Err(OsError::AGAIN) => Heard::Nothing,
            Err(OsError::INTR) => continue,
            // Said once, before what the peer had sent before it left.
            Err(OsError::CONNRESET) if !is_told => {
                is_told = true;
                continue;
            }
            Err(_) => Heard::End,
        };
    }
}

/// Sends one message; whether the peer can still read it. It never waits: a peer that does not read so few is none.
pub fn say(socket: &OwnedFd, message: &Message) -> bool {
    send(socket, &message.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}

/// Whether the listener at the other end is one that the software RNIC would connect us with; tells people if not.
fn is_kin(socket: &OwnedFd, peer: &str) -> bool {
    let judged = farcall_softnic::check_peer(socket.as_fd(), peer);
    if let Err(error) = &judged {
        crate::complain(format_args!("{error}"));
    }
    judged.is_ok()
}
