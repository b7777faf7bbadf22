//! The client's end of the bootstrap connection: the handshake and the notices of the server.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use farcall_link::bootstrap::{
    BootstrapError, Hello, Initiator, PostHandshakeMessage, VersionRange, Welcome,
};

use crate::error::{Broken, ConnectError};

/// The connection over which the handshake took place. It stays open: when it is closed, the server has exited.
pub(super) struct Bootstrap {
    socket: TcpStream,
    machine: Initiator,
}

/// Result of reading the bootstrap connection.
pub(super) enum ServerNotice {
    None,
    Draining,
    Ended(Broken),
}

impl Bootstrap {
    /// Connects and completes the handshake within `timeout`.
    pub fn open(address: &str, hello: &Hello, timeout: Duration) -> Result<(Self, Welcome), ConnectError> {
        let until = Instant::now() + timeout;
        let unreachable = |error: io::Error| {
            let source = match error.kind() {
                kind @ io::ErrorKind::TimedOut => {
                    io::Error::new(kind, format!("no answer within {timeout:?}"))
                }
                _ => error,
            };
            ConnectError::Unreachable { address: address.to_owned(), source }
        };
        let target = address
            .to_socket_addrs()
            .and_then(|mut all| all.next().ok_or_else(|| io::Error::other("the name has no address")))
            .map_err(unreachable)?;
        let mut socket =
            TcpStream::connect_timeout(&target, left(until).map_err(unreachable)?).map_err(unreachable)?;
        let mut machine = Initiator::new(VersionRange::CURRENT);
        let shaken = (|| {
            socket.set_nodelay(true)?;
            socket.write_all(&machine.hello(hello))?;
            read_welcome(&mut socket, &mut machine, until)
        })();
        let welcome = shaken.map_err(unreachable)??;
        socket.set_nonblocking(true).map_err(unreachable)?;
        Ok((Self { socket, machine }, welcome))
    }

    /// Reads the server's notices, without blocking.
    pub fn poll_notices(&mut self) -> ServerNotice {
        let mut buffer = [0u8; 1_024];
        match self.socket.read(&mut buffer) {
            Ok(0) => ServerNotice::Ended(Broken::HungUp),
            Ok(got) => self.handle_notices(&buffer[..got]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                ServerNotice::None
            }
            Err(_) => ServerNotice::Ended(Broken::HungUp),
        }
    }

    fn handle_notices(&mut self, mut bytes: &[u8]) -> ServerNotice {
        let mut result = ServerNotice::None;
        while !bytes.is_empty() {
            match self.machine.feed_post_handshake(bytes) {
                Ok((taken, notice)) => {
                    bytes = &bytes[taken..];
                    if notice == Some(PostHandshakeMessage::GoingAway) {
                        result = ServerNotice::Draining;
                    }
                }
                Err(BootstrapError::Refused(refusal)) => {
                    return ServerNotice::Ended(Broken::Refused(refusal));
                }
                Err(error) => return ServerNotice::Ended(Broken::Protocol(error.to_string())),
            }
        }
        result
    }

    /// Notifies the server that the session is no longer needed.
    pub fn send_close(&mut self) {
        // If the notice is lost, the session expires.
        let _ = self.socket.write(&self.machine.notice(PostHandshakeMessage::CloseNotify));
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read_welcome(
    socket: &mut TcpStream,
    machine: &mut Initiator,
    until: Instant,
) -> io::Result<Result<Welcome, BootstrapError>> {
    let mut buffer = [0u8; 1_024];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        // Bytes after the welcome are left in the socket for later reads.
        match socket.peek(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => match machine.feed_welcome(&buffer[..got]) {
                Ok((taken, welcome)) => {
                    socket.read_exact(&mut buffer[..taken])?;
                    if let Some(welcome) = welcome {
                        return Ok(Ok(welcome));
                    }
                }
                Err(error) => return Ok(Err(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
