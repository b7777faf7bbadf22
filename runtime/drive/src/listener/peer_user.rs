//! User ID of the process at the other end of a TCP connection within this machine, as the kernel reports it
//! (sock_diag(7)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` without `NLM_F_DUMP`: a request for one socket, which the kernel looks up.
const REQUEST: u16 = 1;
/// Length in bytes of `struct nlmsghdr`, and of it with `struct inet_diag_req_v2`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Offsets of the state and the user in a message, in `struct inet_diag_msg` after the header.
const AT_STATE: usize = HEADER_BYTES + 1;
const AT_USER: usize = HEADER_BYTES + 64;
/// `TCP_LISTEN`: state of the listening socket that the lookup finds if the other end is not on this machine.
const LISTENS: u8 = 10;

/// Netlink socket for the requests.
pub(super) struct PeerUsers {
    socket: OwnedFd,
    sequence: u32,
}

impl PeerUsers {
    /// # Errors
    /// If the kernel does not support these requests.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Returns the user of the process that created the other end; `None` if it is on another machine or network, if
    /// it is closed, or if the kernel does not report it.
    pub(super) fn user_of(&mut self, theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        net::send(&self.socket, &encode_request(self.sequence, theirs, ours), SendFlags::DONTWAIT).ok()?;
        // The kernel replies synchronously, before `send` returns.
        let mut reply = [0; 512];
        loop {
            match net::recv(&self.socket, &mut reply[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) if sequence_of(&reply[..len]) == Some(self.sequence) => {
                    return user_in(&reply[..len]);
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

fn encode_request(number: u32, theirs: SocketAddr, ours: SocketAddr) -> [u8; REQUEST_BYTES] {
    let (from, to) = (theirs.ip().to_canonical(), ours.ip().to_canonical());
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let all_states = u32::MAX;
    let mut bytes = [0; REQUEST_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(REQUEST_BYTES as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    put(&number.to_ne_bytes());
    put(&[0; 4]);
    put(&[family, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&all_states.to_ne_bytes());
    put(&theirs.port().to_be_bytes());
    put(&ours.port().to_be_bytes());
    put(&address_words(from));
    put(&address_words(to));
    // Any interface; no cookie.
    put(&[0; 4]);
    put(&[0xff; 8]);
    bytes
}

fn address_words(ip: IpAddr) -> [u8; 16] {
    let mut words = [0; 16];
    match ip {
        IpAddr::V4(v4) => words[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => words = v6.octets(),
    }
    words
}

fn sequence_of(reply: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(reply.get(8..12)?.try_into().ok()?))
}

/// Returns the user in a reply; `None` for an error or a listening socket.
fn user_in(reply: &[u8]) -> Option<u32> {
    let is_found = reply.get(4..6)? == BY_FAMILY.to_ne_bytes() && *reply.get(AT_STATE)? != LISTENS;
    let user = reply.get(AT_USER..AT_USER + 4)?.try_into().ok()?;
    is_found.then(|| u32::from_ne_bytes(user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn identifies_the_user_of_a_peer_over_ipv4_and_ipv6() {
        let ourselves = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            // The machine may lack IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let target = if address == "[::1]:0" { "[::1]" } else { "127.0.0.1" };
            let client = TcpStream::connect(format!("{target}:{port}")).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let mut users = PeerUsers::open().unwrap();
            assert_eq!(users.user_of(peer, accepted.local_addr().unwrap()), Some(ourselves), "{address}");
            drop(client);
        }
    }

    #[test]
    fn identifies_no_user_of_a_remote_peer() {
        // Listens at the port of a connection from another host.
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let mut elsewhere: SocketAddr = "192.0.2.1:0".parse().unwrap();
        elsewhere.set_port(listener.local_addr().unwrap().port());
        let mut users = PeerUsers::open().unwrap();
        assert_eq!(users.user_of(elsewhere, "127.0.0.1:9".parse().unwrap()), None);
        for short in 0..AT_USER {
            assert_eq!(user_in(&vec![BY_FAMILY as u8; short]), None);
        }
    }
}
