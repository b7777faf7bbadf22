//! One client's bootstrap connection.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use farcall_link::bootstrap::{Acceptor, Refusal, RefusalKind};
use mio::net::TcpStream;

use super::placement::ServerThreads;
use super::{BootstrapEvent, BootstrapId, acceptor};

/// The bootstrap connection of one client.
pub(super) struct Connection {
    id: BootstrapId,
    pub(super) socket: TcpStream,
    acceptor: Acceptor,
    /// Deadline for a complete hello; `None` after it was received.
    hello_until: Option<Instant>,
    /// Server thread of the connection, valid after the hello was received.
    thread: usize,
    messages_left: u32,
    pub(super) unsent: Vec<u8>,
    pub(super) close_when_sent: bool,
}

/// Maximum number of messages from one client after its handshake; it needs only a close notification. Each is queued
/// until its server thread handles it.
const MESSAGES_MAX: u32 = 16;

/// Result of reading from a connection.
pub(super) enum ReadOutcome {
    Nothing,
    HungUp,
    Refused(Refusal),
}

impl Connection {
    pub(super) fn new(id: BootstrapId, socket: TcpStream, handshake_timeout: Duration) -> Self {
        let hello_until = Some(Instant::now() + handshake_timeout);
        let (unsent, close_when_sent) = (Vec::new(), false);
        let (acceptor, messages_left) = (acceptor(), MESSAGES_MAX);
        Self { id, socket, acceptor, hello_until, thread: 0, messages_left, unsent, close_when_sent }
    }

    /// Returns whether the hello is not complete yet.
    pub(super) fn awaits_hello(&self) -> bool {
        self.hello_until.is_some()
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.hello_until.is_some_and(|until| until <= now)
    }

    /// Notifies the server thread of this connection, if it has one, that the client is gone.
    pub(super) fn notify_hang_up(&self, threads: &ServerThreads) {
        if let Some(thread) = self.thread() {
            threads.send(thread, BootstrapEvent::HungUp(self.id));
        }
    }

    /// Returns the server thread of this connection, if it has one.
    pub(super) fn thread(&self) -> Option<usize> {
        (!self.awaits_hello()).then_some(self.thread)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.close_when_sent && self.unsent.is_empty()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads all available bytes.
    pub(super) fn read(&mut self, threads: &mut ServerThreads) -> ReadOutcome {
        let mut buffer = [0u8; 4_096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return ReadOutcome::HungUp,
                Ok(got) => {
                    if let Err(refusal) = self.handle_bytes(&buffer[..got], threads) {
                        return ReadOutcome::Refused(refusal);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadOutcome::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return ReadOutcome::HungUp,
            }
        }
    }

    fn handle_bytes(&mut self, mut bytes: &[u8], threads: &mut ServerThreads) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            let (taken, event) = if self.awaits_hello() {
                let (taken, hello) = self.acceptor.feed_hello(bytes)?;
                (taken, hello.map(|hello| BootstrapEvent::Hello(self.id, Box::new(hello))))
            } else {
                let (taken, notice) = self.acceptor.feed_post_handshake(bytes)?;
                (taken, notice.map(|notice| BootstrapEvent::PostHandshake(self.id, notice)))
            };
            bytes = &bytes[taken..];
            let Some(event) = event else { continue };
            if let BootstrapEvent::Hello(_, hello) = &event {
                self.thread = threads.place(hello)?;
                self.hello_until = None;
            } else if self.messages_left == 0 {
                return Err(RefusalKind::OutOfTurn.because(format!("more than {MESSAGES_MAX} notices")));
            } else {
                self.messages_left -= 1;
            }
            threads.send(self.thread, event);
        }
        Ok(())
    }
}
