//! The control stream between the two ends of a measurement: a socket pair on one host, a TCP connection between two.

use super::PeerError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Maximum length of a message between the two ends; longer ones are rejected.
pub(super) const MESSAGE_LEN_BYTES_MAX: u32 = 1 << 26;
/// Length in bytes of the length field in front of a message.
const LEN_BYTES: usize = 4;
/// TCP keep-alive: time without traffic before the first probe, interval between probes, and number of unanswered
/// probes after which the connection is lost.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMES: u32 = 3;

/// One end of the stream.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Creates both ends on this host.
    pub(crate) fn pair() -> Result<(Self, Self), PeerError> {
        let (mine, theirs) = UnixStream::pair().map_err(PeerError::system("socketpair"))?;
        Ok((Self(mine.into()), Self(theirs.into())))
    }

    /// Creates an end from a TCP connection; keep-alive probes detect the loss of the other end.
    pub(crate) fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE_AFTER)?;
        sockopt::set_tcp_keepintvl(&stream, KEEP_ALIVE_EVERY)?;
        sockopt::set_tcp_keepcnt(&stream, KEEP_ALIVE_TIMES)?;
        Ok(Self(stream.into()))
    }

    /// Sets the timeout of reading and writing, or none if `None`. Applies to every process that has this end.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(self, sockopt::Timeout::Recv, patience)?;
        Ok(sockopt::set_socket_timeout(self, sockopt::Timeout::Send, patience)?)
    }

    /// Returns the address at which the other end reaches this host: that of the loopback interface if both are on
    /// this host.
    pub(crate) fn local_ip(&self) -> IpAddr {
        let address = rustix::net::getsockname(self).ok().and_then(|name| SocketAddr::try_from(name).ok());
        address.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
    }

    /// Returns whether the other end is closed or cannot be reached any more.
    pub(crate) fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
        !matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0) | Err(_))
    }
}

impl From<OwnedFd> for Control {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Control {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Read for &Control {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }
}

impl Write for &Control {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, buffer)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a message to the other end: its length, then JSON.
pub(crate) fn send<T: Serialize>(mut control: &Control, message: &T) -> Result<(), PeerError> {
    let mut bytes = vec![0; LEN_BYTES];
    serde_json::to_writer(&mut bytes, message).map_err(not_understood)?;
    let len = u32::try_from(bytes.len() - LEN_BYTES).map_err(not_understood)?;
    bytes[..LEN_BYTES].copy_from_slice(&len.to_le_bytes());
    control.write_all(&bytes).map_err(not_understood)
}

/// Receives a message of the other end.
pub(crate) fn receive<T: DeserializeOwned>(control: &Control) -> Result<T, PeerError> {
    receive_up_to(control, MESSAGE_LEN_BYTES_MAX)
}

/// Receives a message of at most `len_max` bytes. Memory is allocated for the received bytes, not for the announced
/// length.
pub(crate) fn receive_up_to<T: DeserializeOwned>(mut from: impl Read, len_max: u32) -> Result<T, PeerError> {
    let mut len = [0; LEN_BYTES];
    from.read_exact(&mut len).map_err(not_understood)?;
    let len = u32::from_le_bytes(len);
    if len > len_max {
        return Err(PeerError::Exchange(format!("a message of {len} bytes, where {len_max} are the most")));
    }
    let mut text = Vec::new();
    from.take(len.into()).read_to_end(&mut text).map_err(not_understood)?;
    if text.len() < len as usize {
        return Err(PeerError::Exchange("the other end closed the stream within a message".to_owned()));
    }
    serde_json::from_slice(&text).map_err(not_understood)
}

fn not_understood(error: impl std::fmt::Display) -> PeerError {
    PeerError::Exchange(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_garbage_is_refused() {
        let (left, right) = Control::pair().unwrap();
        send(&left, &"first").unwrap();
        send(&left, &2).unwrap();
        assert_eq!(receive::<String>(&right).unwrap(), "first");
        assert_eq!(receive::<u32>(&right).unwrap(), 2);
        (&left).write_all(&[255; 8]).unwrap();
        assert!(receive::<String>(&right).is_err());
        let (left, right) = Control::pair().unwrap();
        send(&left, &"something else").unwrap();
        (&left).write_all(&[9, 0, 0, 0, b'1']).unwrap();
        drop(left);
        assert!(receive::<u32>(&right).is_err());
        assert!(receive::<u32>(&right).unwrap_err().to_string().contains("within a message"));
        assert!(right.is_closed());
    }
}
