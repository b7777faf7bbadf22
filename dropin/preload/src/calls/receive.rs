//! Functions that receive bytes.

use std::ffi::{c_int, c_uint, c_void};

use libc::{cmsghdr, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::export;
use crate::{descriptors, errno, io, libc_next, own_fds, pointers, sock};

/// Maximum number of buffers of a call (IOV_MAX).
pub const MAX_BUFFERS: usize = 1024;

/// Flags of preadv2 and pwritev2 that the kernel accepts for sockets.
pub const VECTOR_FLAGS: c_int =
    libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;

/// Returns whether the kernel refuses a list of buffers because one is longer than any can be.
pub fn is_refused(buffers: &[iovec]) -> bool {
    buffers.iter().any(|buffer| isize::try_from(buffer.iov_len).is_err())
}

/// Receives into one buffer, if the descriptor is a connection of this library; `None` if the kernel must execute the
/// call.
///
/// # Safety
/// The buffer is the program's.
#[inline]
unsafe fn into_one(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    let sock = sock::get(fd)?;
    // SAFETY: the one buffer is the program's, by this function's contract: `len` bytes that can be written until the
    // call returns. `sock` keeps the connection until then.
    unsafe { io::receive(fd, &sock, &[iovec { iov_base: into, iov_len: len }], flags) }.done()
}

/// Receives into many buffers; `None` as in [`into_one`].
///
/// # Safety
/// The contract of [`into_one`].
unsafe fn into_many(fd: c_int, buffers: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    let sock = sock::get(fd).filter(|_| count <= MAX_BUFFERS && pointers::can_read(buffers, count))?;
    // SAFETY: `can_read` has found `count` entries at `buffers`; the program leaves the list alone until the call
    // returns, and `readv` takes it as constant.
    let buffers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffers, count) } };
    if is_refused(buffers) {
        return None;
    }
    // SAFETY: the list is valid, and its buffers can be written until the call returns, by this function's contract.
    unsafe { io::receive(fd, &sock, buffers, flags) }.done()
}

/// Returns whether readv or writev is called for no bytes at all, which the kernel completes without its sockets.
///
/// # Safety
/// The contract of [`into_one`].
pub unsafe fn is_empty_call(buffers: *const iovec, count: c_int) -> bool {
    let Ok(count) = usize::try_from(count) else { return false };
    // SAFETY: `can_read` has found `count` entries at `buffers` before they are read; the program leaves them alone
    // until the call returns.
    count == 0
        || count <= MAX_BUFFERS
            && !buffers.is_null()
            && pointers::can_read(buffers, count)
            && unsafe { std::slice::from_raw_parts(buffers, count) }.iter().all(|buffer| buffer.iov_len == 0)
}

/// Adds the control message that the kernel adds if TCP_INQ is on: the number of bytes left to receive; see
/// [`io::inq_bytes`].
///
/// # Safety
/// The message is the program's.
unsafe fn add_inq(fd: c_int, message: &mut msghdr) {
    const TCP_CM_INQ: c_int = 36;
    let room = message.msg_controllen;
    message.msg_controllen = 0;
    let Some(sock) = sock::get(fd).filter(|sock| sock.reports_inq()) else { return };
    // SAFETY: CMSG_SPACE and CMSG_LEN count only; the program's buffer is long enough for what is written.
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
        let left = io::inq_bytes(&sock).min(c_int::MAX as u64) as c_int;
        message.msg_control.cast::<u8>().add(size_of::<cmsghdr>()).cast::<c_int>().write_unaligned(left);
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as c_uint) as _;
    }
}

/// Called after a message was received: the library closes descriptors of its own if the numbers of those that arrived
/// with the message are near.
///
/// # Safety
/// The kernel has filled the message.
unsafe fn release_near_received(message: *const msghdr) {
    // SAFETY: the kernel has written the message and its control data, by this function's contract; CMSG_FIRSTHDR and
    // CMSG_NXTHDR return headers inside of these only, and `cmsg_len` counts the bytes of each.
    unsafe {
        if (*message).msg_controllen == 0 || !own_fds::exist() {
            return;
        }
        let saved = errno::get();
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(entry) = header.as_ref() {
            if entry.cmsg_level == libc::SOL_SOCKET && entry.cmsg_type == libc::SCM_RIGHTS {
                let bytes = entry.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                (0..bytes / size_of::<c_int>())
                    .for_each(|at| descriptors::release_near(fds.add(at).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
        errno::set(saved);
    }
}

export! {
    fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: `len` bytes at `into` can be written until the call returns, as its manual page requires;
        // `io::receive` and the kernel check them, so that a wrong pointer makes the call fail with EFAULT.
        unsafe {
            // A read of nothing never waits, as a receive of nothing does; the kernel refuses one of too much.
            let is_kernels = len == 0 || isize::try_from(len).is_err();
            let done = if is_kernels { None } else { into_one(fd, into, len, 0) };
            done.unwrap_or_else(|| libc_next::read(fd, into, len))
        }
    }

    fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room {
            std::process::abort();
        }
        // SAFETY: as `read` requires: `len` bytes at `into` are the program's, and no more than the `room` that its
        // compiler has found there.
        unsafe { read(fd, into, len) }
    }

    fn readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: `count` buffers at `into` can be written until the call returns, as its manual page requires;
        // `is_empty_call` and `into_many` check that the list can be read, and `io::receive` the buffers. The kernel
        // checks both itself.
        unsafe {
            let done = if is_empty_call(into, count) { None } else { into_many(fd, into, count as usize, 0) };
            done.unwrap_or_else(|| libc_next::readv(fd, into, count))
        }
    }

    // RWF_NOWAIT is the only flag with a meaning for sockets.
    fn preadv2(fd: c_int, into: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        let receive_flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: `count` buffers at `into` can be written until the call returns, as its manual page requires;
        // `is_empty_call` and `into_many` check that the list can be read, and `io::receive` the buffers. The kernel
        // checks both itself.
        unsafe {
            (offset == -1 && flags & !VECTOR_FLAGS == 0)
                .then(|| into_many(fd, into, count as usize, receive_flags))
                .flatten()
                .unwrap_or_else(|| libc_next::preadv2(fd, into, count, offset, flags))
        }
    }

    fn preadv64v2(fd: c_int, into: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        // SAFETY: `preadv2` takes the same arguments: `off_t` is 64 bits long.
        unsafe { preadv2(fd, into, count, offset, flags) }
    }

    fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: `len` bytes at `into` can be written until the call returns, as its manual page requires;
        // `io::receive` and the kernel check them, so that a wrong pointer makes the call fail with EFAULT.
        unsafe { into_one(fd, into, len, flags).unwrap_or_else(|| libc_next::recv(fd, into, len, flags)) }
    }

    fn __recv_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if len > room {
            std::process::abort();
        }
        // SAFETY: as `recv` requires: `len` bytes at `into` are the program's, and no more than the `room` that its
        // compiler has found there.
        unsafe { recv(fd, into, len, flags) }
    }

    fn recvfrom(
        fd: c_int, into: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t,
    ) -> ssize_t {
        // SAFETY: the program passes `len` bytes at `into`, checked as in `into_one`. `address_len` is written only
        // after `can_write` has found a length there; other pointers go to the kernel, which checks them.
        unsafe {
            match into_one(fd, into, len, flags) {
                Some(done) => {
                    // TCP stores no address here.
                    if done >= 0 && !address.is_null() {
                        if !pointers::can_write(address_len, 1) {
                            return errno::fail(libc::EFAULT) as ssize_t;
                        }
                        *address_len = 0;
                    }
                    done
                }
                None => libc_next::recvfrom(fd, into, len, flags, address, address_len),
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
        // SAFETY: as `recvfrom` requires: `len` bytes at `into` are the program's, and no more than the `room` that its
        // compiler has found there.
        unsafe { recvfrom(fd, into, len, flags, address, address_len) }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: `can_write` has found a message at `message`, which no other thread uses until the call returns
        // (recvmsg(2) writes it). Its list and buffers are checked by `into_many` and `io::receive`, and what the
        // kernel gets by the kernel.
        unsafe {
            if sock::get(fd).is_none() || !pointers::can_write(message, 1) {
                let received = libc_next::recvmsg(fd, message, flags);
                if received >= 0 {
                    release_near_received(message);
                }
                return received;
            }
            let ours = &mut *message;
            if let Some(sock) = sock::get(fd)
                && let Some(done) =
                    io::receive_before_pairing(fd, &sock, flags, || libc_next::recvmsg(fd, message, flags))
            {
                return done;
            }
            match into_many(fd, ours.msg_iov, ours.msg_iovlen, flags) {
                Some(done) => {
                    if done >= 0 {
                        (ours.msg_namelen, ours.msg_flags) = (0, 0);
                        add_inq(fd, ours);
                    }
                    done
                }
                None => libc_next::recvmsg(fd, message, flags),
            }
        }
    }

    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        // SAFETY: `can_write` has found `count` messages at `list`, so that `list.add(at)` is one of them for each `at`
        // below `count`; no other thread uses them until the call returns. `timeout` is passed to the kernel alone.
        unsafe {
            let sock = sock::get(fd).filter(|_| pointers::can_write(list, count as usize));
            let Some(sock) = sock else {
                let received = libc_next::recvmmsg(fd, list, count, flags, timeout);
                for at in 0..usize::try_from(received).unwrap_or(0) {
                    release_near_received(&raw const (*list.add(at)).msg_hdr);
                }
                return received;
            };
            // The kernel reports an error before the bytes that arrived before it, here alone.
            let error = io::take_error(fd, &sock);
            if error != 0 {
                return errno::fail(error);
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
