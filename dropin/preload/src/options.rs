//! Options of sockets that the rings do not provide.

use std::ffi::c_int;

use libc::socklen_t;

use crate::libc_next;

const TCP_REPAIR: c_int = 19;
const TCP_ULP: c_int = 31;
/// Option of TCP: each received message states how many bytes are left.
pub const TCP_INQ: c_int = 36;
const SO_PEEK_OFF: c_int = 42;
/// SO_TIMESTAMP and its kin, old and new.
const STAMPS: [c_int; 6] = [29, 35, 37, 63, 64, 65];

/// Returns whether an option requires a function that only the kernel has.
pub fn is_kernel_only(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => [SO_PEEK_OFF, libc::SO_RCVLOWAT].contains(&name) || STAMPS.contains(&name),
        libc::SOL_TCP => [TCP_REPAIR, TCP_ULP].contains(&name),
        _ => false,
    }
}

/// Options that [`is_kernel_only`] knows, each with its value on a socket that needs no more than the rings.
const KERNEL_OPTIONS: [(c_int, c_int, c_int); 10] = [
    (libc::SOL_SOCKET, SO_PEEK_OFF, -1),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
    (libc::SOL_SOCKET, STAMPS[0], 0),
    (libc::SOL_SOCKET, STAMPS[1], 0),
    (libc::SOL_SOCKET, STAMPS[2], 0),
    (libc::SOL_SOCKET, STAMPS[3], 0),
    (libc::SOL_SOCKET, STAMPS[4], 0),
    (libc::SOL_SOCKET, STAMPS[5], 0),
    (libc::SOL_TCP, TCP_REPAIR, 0),
    (libc::SOL_TCP, TCP_ULP, 0),
];

/// Returns the value of an option that is a number; `None` if the kernel does not know the option.
pub fn number(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: the kernel writes at most `len` bytes, an int.
    let asked = unsafe { libc_next::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (asked == 0).then_some(value)
}

/// Returns whether a socket was set up, before its ends pair, to require a function that only the kernel has: by its
/// program, or by the listener that accepted it.
pub fn needs_kernel(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc_next::fcntl(fd, libc::F_GETFL, 0) };
    flags & libc::O_ASYNC != 0
        || KERNEL_OPTIONS
            .iter()
            .any(|(level, name, usual)| number(fd, *level, *name).is_some_and(|value| value != *usual))
}

/// Returns whether TCP_INQ is enabled.
pub fn reports_inq(fd: c_int) -> bool {
    number(fd, libc::SOL_TCP, TCP_INQ).is_some_and(|value| value != 0)
}
