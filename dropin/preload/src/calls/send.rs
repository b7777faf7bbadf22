//! Functions that send bytes.

use std::ffi::{c_int, c_uint, c_void};

use farcall_stats::PathReason;
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::export;
use super::receive::{MAX_BUFFERS, VECTOR_FLAGS, is_empty_call, is_refused};
use crate::{descriptors, errno, io, libc_next, pointers, sock};

/// Sends one buffer, if the descriptor is a connection of this library; `None` if the kernel must execute the call.
///
/// # Safety
/// The buffer is the program's.
#[inline]
unsafe fn from_one(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    let sock = sock::get(fd)?;
    // SAFETY: the one buffer is the program's, by this function's contract: `len` bytes that can be read until the call
    // returns. `io::send` writes none of them.
    unsafe { io::send(fd, &sock, &[iovec { iov_base: from.cast_mut(), iov_len: len }], flags) }.done()
}

/// Sends many buffers; `None` as in [`from_one`].
///
/// # Safety
/// The contract of [`from_one`].
unsafe fn from_many(fd: c_int, buffers: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    let sock = sock::get(fd).filter(|_| count <= MAX_BUFFERS && pointers::can_read(buffers, count))?;
    // SAFETY: `can_read` has found `count` entries at `buffers`; the program leaves the list alone until the call
    // returns, and `writev` takes it as constant.
    let buffers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffers, count) } };
    if is_refused(buffers) {
        return None;
    }
    // SAFETY: the list is valid, and its buffers can be read until the call returns, by this function's contract.
    unsafe { io::send(fd, &sock, buffers, flags) }.done()
}

/// Returns connections to TCP whose descriptors a message passes to another process.
///
/// # Errors
/// Returns the number of the kernel's error if it refuses the message or its control data.
///
/// # Safety
/// The program leaves the message alone until the function returns.
unsafe fn release_sent(message: *const msghdr) -> Result<(), c_int> {
    // SAFETY: `can_read` has found the message, and `msg_controllen` bytes at `msg_control`; CMSG_FIRSTHDR and
    // CMSG_NXTHDR return headers inside of them only. The descriptors lie in the bytes that `cmsg_len` counts, which
    // are no more than these by the comparison.
    unsafe {
        if !pointers::can_read(message, 1) {
            return Err(libc::EFAULT);
        }
        let len_bytes = (*message).msg_controllen;
        if len_bytes == 0 {
            return Ok(());
        }
        if c_int::try_from(len_bytes).is_err() {
            return Err(libc::ENOBUFS);
        }
        if !pointers::can_read((*message).msg_control.cast::<u8>(), len_bytes) {
            return Err(libc::EFAULT);
        }
        let end = (*message).msg_control.addr() + len_bytes;
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(entry) = header.as_ref() {
            if entry.cmsg_len < size_of_val(entry) || entry.cmsg_len > end - header.addr() {
                return Err(libc::EINVAL);
            }
            if entry.cmsg_level == libc::SOL_SOCKET && entry.cmsg_type == libc::SCM_RIGHTS {
                let bytes = entry.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    let fd = fds.add(at).read_unaligned();
                    if let Some(sock) = sock::get(fd) {
                        descriptors::return_to_kernel(fd, &sock, PathReason::Sent);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    Ok(())
}

export! {
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: `len` bytes at `from` can be read until the call returns, as its manual page requires; `io::send` and
        // the kernel check them, so that a wrong pointer makes the call fail with EFAULT.
        unsafe {
            // The kernel refuses to write too much.
            let is_refused = isize::try_from(len).is_err();
            let done = if is_refused { None } else { from_one(fd, from, len, 0) };
            done.unwrap_or_else(|| libc_next::write(fd, from, len))
        }
    }

    fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: `count` buffers at `from` can be read until the call returns, as its manual page requires;
        // `is_empty_call` and `from_many` check that the list can be read, and `io::send` the buffers. The kernel
        // checks both itself.
        unsafe {
            let done = if is_empty_call(from, count) { None } else { from_many(fd, from, count as usize, 0) };
            done.unwrap_or_else(|| libc_next::writev(fd, from, count))
        }
    }

    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: `len` bytes at `from` can be read until the call returns, as its manual page requires; `io::send` and
        // the kernel check them, so that a wrong pointer makes the call fail with EFAULT.
        unsafe { from_one(fd, from, len, flags).unwrap_or_else(|| libc_next::send(fd, from, len, flags)) }
    }

    // RWF_NOWAIT is the only flag with a meaning for sockets.
    fn pwritev2(fd: c_int, from: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        let send_flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: `count` buffers at `from` can be read until the call returns, as its manual page requires;
        // `is_empty_call` and `from_many` check that the list can be read, and `io::send` the buffers. The kernel
        // checks both itself.
        unsafe {
            (offset == -1 && flags & !VECTOR_FLAGS == 0)
                .then(|| from_many(fd, from, count as usize, send_flags))
                .flatten()
                .unwrap_or_else(|| libc_next::pwritev2(fd, from, count, offset, flags))
        }
    }

    fn pwritev64v2(fd: c_int, from: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        // SAFETY: `pwritev2` takes the same arguments: `off_t` is 64 bits long.
        unsafe { pwritev2(fd, from, count, offset, flags) }
    }

    fn sendto(
        fd: c_int, from: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t,
    ) -> ssize_t {
        // SAFETY: `len` bytes at `from` can be read until the call returns, as its manual page requires; `io::send` and
        // the kernel check them, so that a wrong pointer makes the call fail with EFAULT. `address` is passed to the
        // kernel alone.
        unsafe {
            from_one(fd, from, len, flags)
                .unwrap_or_else(|| libc_next::sendto(fd, from, len, flags, address, address_len))
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: `can_read` has found a message at `message`, which the program leaves alone until the call returns
        // (sendmsg(2) takes it as constant). Its list and buffers are checked by `from_many` and `io::send`, and what
        // the kernel gets by the kernel.
        unsafe {
            if release_sent(message).is_err() || sock::get(fd).is_none() {
                return libc_next::sendmsg(fd, message, flags);
            }
            let ours = &*message;
            if ours.msg_controllen > 0
                && let Some(sock) = sock::get(fd)
            {
                sock.demote(PathReason::KernelFeature);
            }
            from_many(fd, ours.msg_iov, ours.msg_iovlen, flags)
                .unwrap_or_else(|| libc_next::sendmsg(fd, message, flags))
        }
    }

    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // SAFETY: `can_write` has found `count` messages at `list`, so that `list.add(at)` is one of them for each `at`
        // below `count`; no other thread uses them until the call returns (sendmmsg(2) writes `msg_len`).
        unsafe {
            if !pointers::can_write(list, count as usize) {
                return libc_next::sendmmsg(fd, list, count, flags);
            }
            if sock::get(fd).is_none() {
                for at in 0..count as usize {
                    _ = release_sent(&raw const (*list.add(at)).msg_hdr);
                }
                return libc_next::sendmmsg(fd, list, count, flags);
            }
            for at in 0..count as usize {
                let entry = &mut *list.add(at);
                let done = sendmsg(fd, &raw const entry.msg_hdr, flags);
                if done < 0 {
                    return if at > 0 { at as c_int } else { -1 };
                }
                entry.msg_len = done as c_uint;
            }
            count as c_int
        }
    }

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
        if let Some(sock) = sock::get(out) {
            sock.demote(PathReason::KernelFeature);
        }
        // SAFETY: `offset` is null or the program's; the kernel alone reads and writes it, and fails with EFAULT if it
        // cannot.
        unsafe { libc_next::sendfile(out, from, offset, len) }
    }

    fn splice(
        from: c_int, from_at: *mut i64, into: c_int, into_at: *mut i64, len: size_t, flags: c_uint,
    ) -> ssize_t {
        for fd in [from, into] {
            if let Some(sock) = sock::get(fd) {
                sock.demote(PathReason::KernelFeature);
                if fd == from && sock.unread_bytes() > 0 {
                    // Programs then read.
                    errno::set(libc::EINVAL);
                    return -1;
                }
            }
        }
        // SAFETY: both offsets are null or the program's; the kernel alone reads and writes them, and fails with EFAULT
        // if it cannot.
        unsafe { libc_next::splice(from, from_at, into, into_at, len, flags) }
    }
}
