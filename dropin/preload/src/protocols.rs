//! Protocols of sockets, as far as the library knows them.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use crate::fd_set::FDS;

/// Protocols of descriptors that connections are made from: 0 not known, 1 TCP, 2 another.
static PROTOCOLS: [AtomicU8; FDS] = [const { AtomicU8::new(0) }; FDS];

/// Called after `socket` returned `fd`.
pub fn opened(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    let is_tcp = is_internet && kind == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if let Some(entry) = PROTOCOLS.get(fd as usize).filter(|_| is_tcp) {
        entry.store(1, Relaxed);
    }
}

/// Returns whether a socket is one of TCP; the kernel is queried once, and not at all for a socket that `socket`
/// returned.
pub fn is_known_as_tcp(fd: c_int) -> bool {
    let Some(entry) = PROTOCOLS.get(fd as usize) else { return false };
    let known = entry.load(Relaxed);
    if known != 0 {
        return known == 1;
    }
    let is_tcp = is_tcp(fd);
    entry.store(if is_tcp { 1 } else { 2 }, Relaxed);
    is_tcp
}

/// Called before a descriptor is closed, or its number is reused for another one.
pub fn forget(fd: c_int) {
    if let Some(entry) = PROTOCOLS.get(fd as usize)
        && entry.load(Relaxed) != 0
    {
        entry.store(0, Relaxed);
    }
}

/// Queries the kernel whether a socket is one of TCP.
pub fn is_tcp(fd: c_int) -> bool {
    // SAFETY: the program's descriptor, for one query; the kernel returns an error for a wrong one.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::net::sockopt::socket_protocol(fd) == Ok(Some(rustix::net::ipproto::TCP))
}
