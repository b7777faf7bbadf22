//! Streams as sockets: a TCP connection carries the handshake, and the threads or tasks that use a socket drive it.

mod acceptor;
#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod options;
mod readiness;
mod set;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};

use crate::negotiated::BootstrapChannel;
pub use acceptor::AcceptCounts;
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncStream, AsyncStreamListener};
pub use blocking::{StreamListener, StreamSocket};
pub use options::StreamOptions;
pub use set::StreamSet;

/// The socket must be in non-blocking mode.
impl BootstrapChannel for TcpStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Read::read(self, bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }

    fn into_tcp(self) -> Option<TcpStream> {
        Some(self)
    }
}
