//! Functions for options and states of sockets.

use std::ffi::{c_int, c_ulong, c_void};

use farcall_stats::PathReason;
use libc::socklen_t;

use super::export;
use crate::tcp::SIOCATMARK;
use crate::{errno, libc_next, options, pointers, sock};

const TCP_ZEROCOPY_RECEIVE: c_int = 35;
export! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if let Some(sock) = sock::get(fd) {
            if options::is_kernel_only(level, name) {
                sock.demote(PathReason::KernelFeature);
            }
            if (level, name) == (libc::SOL_TCP, options::TCP_INQ)
                && len as usize >= size_of::<c_int>()
                && pointers::can_read(value.cast::<c_int>(), 1)
            {
                // SAFETY: `can_read` has found an int at `value`, of which the program says that it is `len` bytes
                // long, and `read_unaligned` needs no alignment.
                let is_on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
                sock.set_reports_inq(is_on);
            }
        }
        // SAFETY: the kernel reads `len` bytes at `value`, both as the program passed them, and fails with EFAULT if it
        // cannot.
        let done = unsafe { libc_next::setsockopt(fd, level, name, value, len) };
        if done == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            && let Some(sock) = sock::get(fd)
        {
            let low_water_bytes = options::number(fd, level, name).and_then(|bytes| u32::try_from(bytes).ok());
            sock.set_low_water_bytes(low_water_bytes.unwrap_or(1));
        }
        done
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        if (level, name) == (libc::SOL_TCP, TCP_ZEROCOPY_RECEIVE)
            && let Some(sock) = sock::get(fd)
        {
            sock.demote(PathReason::KernelFeature);
            if sock.unread_bytes() > 0 {
                // Programs then read.
                errno::set(libc::EINVAL);
                return -1;
            }
        }
        // SAFETY: the kernel writes at most `*len` bytes at `value`; both pointers are the program's, unchanged, and
        // the kernel fails with EFAULT if it cannot access them.
        let done = unsafe { libc_next::getsockopt(fd, level, name, value, len) };
        if done == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
            && let Some(sock) = sock::get(fd)
        {
            // SAFETY: the kernel wrote an int there, or less.
            unsafe {
                if *len as usize == size_of::<c_int>() && value.cast::<c_int>().read_unaligned() == 0 {
                    value.cast::<c_int>().write_unaligned(sock.take_pending_error());
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
        let done = unsafe { libc_next::ioctl(fd, request, argument) };
        let Some(sock) = sock.filter(|_| done == 0) else { return done };
        let more = match request {
            libc::FIONREAD => sock.unread_bytes(),
            _ => {
                if request == libc::FIONBIO as c_ulong {
                    sock.set_known_nonblocking(None);
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
