//! Query of the kernel for the socket at one end of a TCP connection (sock_diag(7)).

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{libc_next, own_fds};

const NETLINK_SOCK_DIAG: c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// `nlmsghdr`, then `inet_diag_req_v2`: 8 bytes, then `inet_diag_sockid`: ports, addresses, interface, cookie.
const REQUEST_BYTES: usize = 16 + 8 + 48;
/// Offset of the inode in the reply: behind `nlmsghdr`, 4 bytes, `inet_diag_sockid` and four numbers.
const AT_INODE: usize = 16 + 4 + 48 + 16;

/// Returns the inode of the socket with the local address `local` and the peer address `peer`.
pub fn inode(local: SocketAddr, peer: SocketAddr) -> Option<u64> {
    // SAFETY: no memory is involved; the descriptor is fresh.
    let socket = unsafe {
        let fd = libc_next::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?
    };
    let request = request(local, peer);
    let mut answer = [0_u8; 512];
    // SAFETY: both buffers are valid for their lengths.
    let len = unsafe {
        libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0);
        // The kernel has replied during `send`.
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    inode_in(answer.get(..usize::try_from(len).ok()?)?)
}

/// Reports on standard error, unless that is a socket, that a connection was ended because its order was lost.
pub fn warn_unannounced(addresses: Option<(SocketAddr, SocketAddr)>) {
    // SAFETY: zeros are a valid status, which `fstat` fills.
    let is_socket = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(libc::STDERR_FILENO, &raw mut status) != 0
            || status.st_mode & libc::S_IFMT == libc::S_IFSOCK
    };
    let Some((local, peer)) = addresses.filter(|_| !is_socket) else { return };
    let text = format!(
        "farcall: connection {local} with {peer} ended: its TCP socket received bytes that the library of the other \
         end had not sent, so their order is not known; run the other program without farcall run, or name it in \
         FARCALL_RUN_EXCEPT\n"
    );
    // By the kernel's call: the C library's is this library's.
    let _ = rustix::io::write(own_fds::borrow(libc::STDERR_FILENO), text.as_bytes());
}

fn request(local: SocketAddr, peer: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &1_u32.to_ne_bytes());
    put(16, &[if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8, libc::IPPROTO_TCP as u8]);
    // In all states.
    put(20, &u32::MAX.to_ne_bytes());
    for (i, address) in [local, peer].into_iter().enumerate() {
        put(24 + 2 * i, &address.port().to_be_bytes());
        match address.ip() {
            IpAddr::V4(ip) => put(28 + 16 * i, &ip.octets()),
            IpAddr::V6(ip) => put(28 + 16 * i, &ip.octets()),
        }
    }
    // No cookie.
    put(64, &[0xFF; 8]);
    bytes
}

/// Returns the inode in the kernel's reply; `None` for an error.
fn inode_in(answer: &[u8]) -> Option<u64> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let inode = u32::from_ne_bytes(answer.get(AT_INODE..AT_INODE + 4)?.try_into().ok()?);
    (kind == SOCK_DIAG_BY_FAMILY && inode != 0).then_some(inode.into())
}
