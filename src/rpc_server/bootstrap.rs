//! Where RPC clients connect: a TCP listener that carries the handshake, and tells when a client's process is gone.

use farcall_link::bootstrap::{Acceptor, Notice, Refusal, RefusalKind, VersionRange};
use farcall_rpc::{ConnectionId, Handler, Responder, ResponderEvent};
use farcall_verbs::{Clock, Nanos, WaitSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A client that says nothing for so long is sent away.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// Handshakes and connections at once; further clients are told so.
const CONVERSATIONS_MAX: usize = 2048;
/// One read takes so much; a handshake is shorter.
const READ_LEN_BYTES: usize = 4096;

/// The listener and the open conversations.
pub(crate) struct Bootstrap {
    listener: TcpListener,
    conversations: Vec<Conversation>,
}

/// One client's bootstrap connection.
struct Conversation {
    stream: TcpStream,
    acceptor: Acceptor,
    began: Nanos,
    connection: Option<ConnectionId>,
}

/// What a conversation came to.
enum Outcome {
    /// It goes on.
    Open,
    /// It is over.
    Over,
}

impl Bootstrap {
    /// Listens on `address`; port 0 lets the system choose.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub(crate) fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, conversations: Vec::new() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not tell.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What to sleep on.
    pub(crate) fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.listener.as_raw_fd());
        self.conversations.iter().for_each(|conversation| set.insert(conversation.stream.as_raw_fd()));
    }

    /// Does what can be done without waiting; returns whether there was anything.
    pub(crate) fn look<H: Handler, C: Clock>(&mut self, responder: &mut Responder<H, C>, now: Nanos) -> bool {
        let mut any = self.accept(now);
        while let Some(event) = responder.poll_event() {
            any = true;
            self.end_connection(&event);
        }
        self.conversations.retain_mut(|conversation| match conversation.listen(responder, now) {
            Ok(Outcome::Open) => true,
            Ok(Outcome::Over) | Err(_) => {
                any = true;
                conversation.hang_up(responder, true, now);
                false
            }
        });
        any
    }

    fn accept(&mut self, now: Nanos) -> bool {
        let mut any = false;
        // Failures to accept (no descriptors left, a client that went) leave the listener as it is for the next look.
        while let Ok((stream, _)) = self.listener.accept() {
            any = true;
            let mut conversation = Conversation {
                stream,
                acceptor: Acceptor::new(VersionRange::CURRENT),
                began: now,
                connection: None,
            };
            if self.conversations.len() >= CONVERSATIONS_MAX {
                let full =
                    RefusalKind::TooManyConnections.because(format!("{CONVERSATIONS_MAX} connections"));
                conversation.refuse(&full);
            } else if conversation.stream.set_nonblocking(true).is_ok() {
                self.conversations.push(conversation);
            }
        }
        any
    }

    /// Tells a client why its connection ended, and closes the conversation.
    fn end_connection(&mut self, event: &ResponderEvent) {
        let ResponderEvent::Closed { connection, tell, .. } = event;
        if let Some(at) = self.conversations.iter().position(|each| each.connection == Some(*connection)) {
            let mut conversation = self.conversations.swap_remove(at);
            if let Some(refusal) = tell {
                conversation.refuse(refusal);
            }
        }
    }

    /// Tells all clients that the server drains.
    pub(crate) fn say_going_away(&mut self) {
        for conversation in &mut self.conversations {
            let notice = conversation.acceptor.notice(Notice::GoingAway);
            // A client that cannot be told finds out by its next call.
            let _ = conversation.stream.write_all(&notice);
        }
    }
}

impl Conversation {
    /// Takes in what the client says.
    fn listen<H: Handler, C: Clock>(
        &mut self,
        responder: &mut Responder<H, C>,
        now: Nanos,
    ) -> io::Result<Outcome> {
        let mut bytes = [0; READ_LEN_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Ok(Outcome::Over),
            Ok(count) => Ok(self.hear(&bytes[..count], responder, now)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                let is_late = self.connection.is_none() && now.since(self.began) > HELLO_PATIENCE;
                Ok(if is_late { Outcome::Over } else { Outcome::Open })
            }
            Err(error) => Err(error),
        }
    }

    fn hear<H: Handler, C: Clock>(
        &mut self,
        mut bytes: &[u8],
        responder: &mut Responder<H, C>,
        now: Nanos,
    ) -> Outcome {
        if self.connection.is_none() {
            let taken = match self.acceptor.feed_hello(bytes) {
                Ok((_, None)) => return Outcome::Open,
                Ok((taken, Some(hello))) => match responder.accept(&hello, now) {
                    Ok((connection, welcome)) => {
                        self.connection = Some(connection);
                        if self.stream.write_all(&self.acceptor.welcome(&welcome)).is_err() {
                            return Outcome::Over;
                        }
                        taken
                    }
                    Err(refusal) => return self.refuse(&refusal),
                },
                Err(refusal) => return self.refuse(&refusal),
            };
            bytes = &bytes[taken..];
        }
        match self.acceptor.feed_notice(bytes) {
            Ok((_, None)) => Outcome::Open,
            Ok((_, Some(Notice::Goodbye))) => {
                self.hang_up(responder, false, now);
                Outcome::Over
            }
            // A later version may say more; what it says is not for us.
            Ok((_, Some(_))) => Outcome::Open,
            Err(_) => Outcome::Over,
        }
    }

    fn hang_up<H: Handler, C: Clock>(
        &mut self,
        responder: &mut Responder<H, C>,
        may_come_back: bool,
        now: Nanos,
    ) {
        if let Some(connection) = self.connection.take() {
            responder.hang_up(connection, may_come_back, now);
        }
    }

    /// Says why not. A client that does not listen has only itself to blame.
    fn refuse(&mut self, refusal: &Refusal) -> Outcome {
        let _ = self.stream.write_all(&self.acceptor.refuse(refusal));
        Outcome::Over
    }
}
