//! Options and states of sockets.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_stats::PathReason;
use libc::socklen_t;

use super::export;
use crate::{errno, io, pointers, real, sock};

/// `ioctl` request that queries whether the socket is at the mark of urgent data.
pub(super) const SIOCATMARK: c_ulong = 0x8905;
const TCP_REPAIR: c_int = 19;
const TCP_ULP: c_int = 31;
const TCP_INQ: c_int = 36;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;
const SO_PEEK_OFF: c_int = 42;
/// SO_TIMESTAMP and its kin, old and new.
const STAMPS: [c_int; 6] = [29, 35, 37, 63, 64, 65];

/// Returns whether an option requires a function that only the kernel has.
fn is_the_kernels(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => [SO_PEEK_OFF, libc::SO_RCVLOWAT].contains(&name) || STAMPS.contains(&name),
        libc::SOL_TCP => [TCP_REPAIR, TCP_ULP].contains(&name),
        _ => false,
    }
}

/// Options that [`is_the_kernels`] knows, each with its value on a socket that needs no more than the rings.
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
fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: the kernel writes at most `len` bytes, an int.
    let asked = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (asked == 0).then_some(value)
}

/// Returns whether a socket was set up, before its ends meet, to require a function that only the kernel has: by its
/// program, or by the listener that accepted it.
pub fn needs_kernel(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags & libc::O_ASYNC != 0
        || KERNEL_OPTIONS
            .iter()
            .any(|(level, name, usual)| option(fd, *level, *name).is_some_and(|value| value != *usual))
}

/// Returns whether TCP_INQ is enabled.
pub fn tells_inq(fd: c_int) -> bool {
    option(fd, libc::SOL_TCP, TCP_INQ).is_some_and(|value| value != 0)
}

export! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if let Some(sock) = sock::get(fd) {
            if is_the_kernels(level, name) {
                sock.demote(PathReason::KernelFeature);
            }
            if level == libc::SOL_TCP && name == TCP_INQ && len as usize >= size_of::<c_int>() && pointers::can_read(value.cast::<c_int>(), 1) {
                // SAFETY: `can_read` has found an int at `value`, of which the program says that it is `len` bytes
                // long, and `read_unaligned` needs no alignment.
                let is_on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
                sock.tells_inq.store(is_on, Relaxed);
            }
        }
        // SAFETY: the kernel reads `len` bytes at `value`, both as the program passed them, and fails with EFAULT if it
        // cannot.
        let done = unsafe { real::setsockopt(fd, level, name, value, len) };
        if done == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            && let Some(sock) = sock::get(fd)
        {
            let low_water_bytes = option(fd, level, name).and_then(|bytes| u32::try_from(bytes).ok());
            sock.low_water_bytes.store(low_water_bytes.unwrap_or(1), SeqCst);
        }
        done
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        if (level, name) == (libc::SOL_TCP, TCP_ZEROCOPY_RECEIVE)
            && let Some(sock) = sock::get(fd)
        {
            sock.demote(PathReason::KernelFeature);
            if io::unread_bytes(&sock) > 0 {
                // Programs then read.
                errno::set(libc::EINVAL);
                return -1;
            }
        }
        // SAFETY: the kernel writes at most `*len` bytes at `value`; both pointers are the program's, unchanged, and
        // the kernel fails with EFAULT if it cannot access them.
        let done = unsafe { real::getsockopt(fd, level, name, value, len) };
        if done == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
            && let Some(sock) = sock::get(fd)
        {
            // SAFETY: the kernel wrote an int there, or less.
            unsafe {
                if *len as usize == size_of::<c_int>() && value.cast::<c_int>().read_unaligned() == 0 {
                    value.cast::<c_int>().write_unaligned(sock.pending_error.swap(0, SeqCst));
                }
            }
        }
        done
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        let sock = sock::get(fd);
        if let Some(sock) = &sock
            && [libc::FIOASYNC as c_ulong, SIOCATMARK].contains(&request)
        {
            sock.demote(PathReason::KernelFeature);
        }
        // SAFETY: `argument` is a number, or a pointer to what `request` names; the kernel alone reads or writes it,
        // and fails with EFAULT if it cannot.
        let done = unsafe { real::ioctl(fd, request, argument) };
        let Some(sock) = sock.filter(|_| done == 0) else { return done };
        let more = match request {
            libc::FIONREAD => io::unread_bytes(&sock),
            _ => {
                if request == libc::FIONBIO as c_ulong {
                    sock.nonblocking.store(0, Relaxed);
                }
                return done;
            }
        };
        let number = std::ptr::with_exposed_provenance_mut::<c_int>(argument);
        // SAFETY: the kernel wrote an int there.
        unsafe { number.write_unaligned(number.read_unaligned().saturating_add(more as c_int)) };
        done
    }
}
