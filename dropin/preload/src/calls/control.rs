//! Options and states of sockets.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_stats::Why;
use libc::socklen_t;

use super::export;
use crate::{io, real, sock};

/// Where urgent data are.
const SIOCATMARK: c_ulong = 0x8905;
const TCP_REPAIR: c_int = 19;
const TCP_ULP: c_int = 31;
const TCP_INQ: c_int = 36;
const SO_PEEK_OFF: c_int = 42;
const SO_ZEROCOPY: c_int = 60;
/// SO_TIMESTAMP and its kin, old and new.
const STAMPS: [c_int; 6] = [29, 35, 37, 63, 64, 65];

/// Whether an option makes a socket do what only the kernel can.
fn is_the_kernels(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => {
            [SO_PEEK_OFF, SO_ZEROCOPY, libc::SO_RCVLOWAT].contains(&name) || STAMPS.contains(&name)
        }
        libc::SOL_TCP => [TCP_REPAIR, TCP_ULP].contains(&name),
        _ => false,
    }
}

export! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if let Some(sock) = sock::get(fd) {
            if is_the_kernels(level, name) {
                sock.demote(Why::KernelFeature);
            }
            if level == libc::SOL_TCP && name == TCP_INQ && !value.is_null() && len as usize >= size_of::<c_int>() {
                // SAFETY: the caller's promise.
                let is_on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
                sock.tells_inq.store(is_on, Relaxed);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { real::setsockopt(fd, level, name, value, len) }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        // SAFETY: the caller's promise.
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
            sock.demote(Why::KernelFeature);
        }
        // SAFETY: the caller's promise.
        let done = unsafe { real::ioctl(fd, request, argument) };
        let Some(sock) = sock.filter(|_| done == 0) else { return done };
        let more = match request {
            libc::FIONREAD => io::unread_bytes(&sock),
            libc::TIOCOUTQ => io::unsent_bytes(&sock),
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
