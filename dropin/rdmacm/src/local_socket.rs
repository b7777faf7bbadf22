//! Unix sockets between endpoints: one message a packet.

use std::os::fd::OwnedFd;

use farcall_wire::cm::{MESSAGE_BYTES, Mad};
use rustix::io::Errno as OsError;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};

use crate::errno::{Errno, system};
use crate::management::{REMOTE_MAD_BYTES, RemoteMad};

/// Creates an unnamed socket.
///
/// # Errors
/// Returns the kernel's error.
pub fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("no socket for an end"))
}

/// Sends one message. Returns whether the peer can still read it. Never blocks: a peer that does not read even these
/// few messages is treated as exited.
pub fn send_message(socket: &OwnedFd, mad: &Mad) -> bool {
    send(socket, &mad.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}

/// Result of receiving from a socket.
pub enum Arrived {
    Nothing,
    Message(Box<Mad>),
    /// A message of another host, from the process that owns queue pair 1.
    RemoteMad(Box<RemoteMad>),
    /// The peer has closed the connection, or sent an invalid message.
    Closed,
}

impl Arrived {
    /// Receives one message from a socket.
    pub fn at(socket: &OwnedFd) -> Self {
        // One byte more than any message, to detect longer ones.
        let mut bytes = [0; REMOTE_MAD_BYTES + 1];
        let mut was_reset = false;
        loop {
            return match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((MESSAGE_BYTES, _)) => match Mad::decode(&bytes[..MESSAGE_BYTES]) {
                    Ok(mad) => Self::Message(Box::new(mad)),
                    Err(error) => {
                        tracing::debug!("{error}");
                        Self::Closed
                    }
                },
                Ok((REMOTE_MAD_BYTES, _)) => {
                    let whole = bytes.first_chunk().expect("as many bytes as came");
                    Self::RemoteMad(Box::new(RemoteMad::decode(whole)))
                }
                Ok(_) => Self::Closed,
                Err(OsError::AGAIN) => Self::Nothing,
                Err(OsError::INTR) => continue,
                // Reported once, before the messages that the peer sent before it closed the connection.
                Err(OsError::CONNRESET) if !was_reset => {
                    was_reset = true;
                    continue;
                }
                Err(_) => Self::Closed,
            };
        }
    }
}
