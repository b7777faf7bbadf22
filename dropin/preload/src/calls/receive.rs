//! Bytes come.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::{cmsghdr, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::export;
use crate::io::{self, Way};
use crate::{real, sock};

/// Buffers that a call may have (IOV_MAX).
const MAX_BUFFERS: usize = 1024;

/// Receives into one buffer, if the descriptor is a connection of ours.
///
/// # Safety
/// The buffer is the program's.
#[inline]
unsafe fn into_one(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    let sock = sock::get(fd)?;
    // SAFETY: the caller's promise.
    match unsafe { io::receive(fd, &sock, &[iovec { iov_base: into, iov_len: len }], flags) } {
        Way::Kernel => None,
        Way::Done(done) => Some(done),
    }
}

/// Receives into many buffers; `None` as in [`into_one`].
///
/// # Safety
/// As [`into_one`].
unsafe fn into_many(fd: c_int, buffers: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    let sock = sock::get(fd).filter(|_| count <= MAX_BUFFERS && (count == 0 || !buffers.is_null()))?;
    // SAFETY: the caller's promise.
    let buffers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffers, count) } };
    // SAFETY: the caller's promise.
    match unsafe { io::receive(fd, &sock, buffers, flags) } {
        Way::Kernel => None,
        Way::Done(done) => Some(done),
    }
}

/// What the kernel adds if TCP_INQ is on: how many bytes are left; see [`io::bytes_left_to_tell`].
///
/// # Safety
/// The message is the program's.
unsafe fn tell_inq(fd: c_int, message: &mut msghdr) {
    const TCP_CM_INQ: c_int = 36;
    let room = message.msg_controllen;
    message.msg_controllen = 0;
    let Some(sock) = sock::get(fd).filter(|sock| sock.tells_inq.load(Relaxed)) else { return };
    // SAFETY: CMSG_SPACE and CMSG_LEN count only; there is room for what is written.
    unsafe {
        if message.msg_control.is_null() || room < libc::CMSG_SPACE(size_of::<c_int>() as c_uint) as usize {
            return;
        }
        let header = cmsghdr {
            cmsg_len: libc::CMSG_LEN(size_of::<c_int>() as c_uint) as _,
            cmsg_level: libc::SOL_TCP,
            cmsg_type: TCP_CM_INQ,
        };
        message.msg_control.cast::<cmsghdr>().write_unaligned(header);
        let left = io::bytes_left_to_tell(&sock).min(c_int::MAX as u64) as c_int;
        message.msg_control.cast::<u8>().add(size_of::<cmsghdr>()).cast::<c_int>().write_unaligned(left);
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as c_uint) as _;
    }
}

export! {
    fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: the caller's promise, here and in all of these.
        unsafe { into_one(fd, into, len, 0).unwrap_or_else(|| real::read(fd, into, len)) }
    }

    fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room {
            std::process::abort();
        }
        // SAFETY: as above.
        unsafe { read(fd, into, len) }
    }

    fn readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: as above.
        unsafe { into_many(fd, into, count as usize, 0).unwrap_or_else(|| real::readv(fd, into, count)) }
    }

    fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        unsafe { into_one(fd, into, len, flags).unwrap_or_else(|| real::recv(fd, into, len, flags)) }
    }

    fn __recv_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if len > room {
            std::process::abort();
        }
        // SAFETY: as above.
        unsafe { recv(fd, into, len, flags) }
    }

    fn recvfrom(
        fd: c_int, into: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t,
    ) -> ssize_t {
        // SAFETY: as above.
        unsafe {
            match into_one(fd, into, len, flags) {
                Some(done) => {
                    // TCP tells no address here.
                    if done >= 0 && !address.is_null() && !address_len.is_null() {
                        *address_len = 0;
                    }
                    done
                }
                None => real::recvfrom(fd, into, len, flags, address, address_len),
            }
        }
    }

    fn __recvfrom_chk(
        fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t {
        if len > room {
            std::process::abort();
        }
        // SAFETY: as above.
        unsafe { recvfrom(fd, into, len, flags, address, address_len) }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: as above.
        unsafe {
            let Some(ours) = message.as_mut() else { return real::recvmsg(fd, message, flags) };
            match into_many(fd, ours.msg_iov, ours.msg_iovlen, flags) {
                Some(done) => {
                    if done >= 0 {
                        (ours.msg_namelen, ours.msg_flags) = (0, 0);
                        tell_inq(fd, ours);
                    }
                    done
                }
                None => real::recvmsg(fd, message, flags),
            }
        }
    }

    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        // SAFETY: as above.
        unsafe {
            if sock::get(fd).is_none() {
                return real::recvmmsg(fd, list, count, flags, timeout);
            }
            let mut flags = flags;
            for at in 0..count as usize {
                let entry = &mut *list.add(at);
                let done = recvmsg(fd, &raw mut entry.msg_hdr, flags & !libc::MSG_WAITFORONE);
                if done < 0 {
                    return if at > 0 { at as c_int } else { -1 };
                }
                entry.msg_len = done as c_uint;
                if flags & libc::MSG_WAITFORONE != 0 {
                    flags |= libc::MSG_DONTWAIT;
                }
            }
            count as c_int
        }
    }
}
