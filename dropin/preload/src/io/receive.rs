//! Receiving.

use std::ffi::c_int;

use farcall_stats::PathReason;
use libc::{iovec, ssize_t};

use super::buffers::{is_inaccessible, len_bytes};
use super::kernel::{Received, kernel_receive, peek, receive_before_pairing, receive_from_kernel};
use super::wait::{Wait, is_nonblocking};
use super::{CallOutcome, fail};
use crate::pointers::Access;
use crate::ring::ReceiveMode;
use crate::sock::{Direction, Link, Sock, Stage};
use crate::switch::RingSnapshot;
use crate::{clock, confined, sock_diag, tcp};

/// Flags of a receive that the rings know.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Receives.
///
/// # Safety
/// The buffers are the program's, and can be written.
pub unsafe fn receive(fd: c_int, sock: &Sock, buffers: &[iovec], flags: c_int) -> CallOutcome {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return CallOutcome::PassToKernel;
    }
    if confined::is_confined() {
        // SAFETY: this function's contract.
        return unsafe { receive_when_confined(sock, buffers, flags) };
    }
    if flags & !RECEIVE_FLAGS != 0 {
        sock.demote(PathReason::KernelFeature);
        if flags & libc::MSG_OOB != 0 {
            return CallOutcome::PassToKernel;
        }
    }
    // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns.
    let receive = || unsafe { kernel_receive(fd, buffers, flags) };
    if let Some(received) = receive_before_pairing(fd, sock, flags, receive) {
        return CallOutcome::Done(received);
    }
    match sock.stage() {
        Stage::Tcp => return CallOutcome::PassToKernel,
        // This is a signal handler that interrupted the thread which pairs the ends.
        Stage::Switching => return fail(libc::EAGAIN),
        _ => {}
    }
    if sock.is_inherited() {
        sock.demote(PathReason::Forked);
    }
    let wanted = len_bytes(buffers);
    if wanted == 0
        && let Some(link) = sock.link()
    {
        return receive_zero_bytes(fd, sock, link, flags);
    }
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let peeks_at_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK != 0;
    let (mut done, mut wait, mut has_waited) = (0, None, false);
    loop {
        // Checked before the bytes are. A peek may get fewer than are there: it ends where a ring begins or ends.
        let are_all_there =
            peeks_at_all && (has_waited || tcp::is_ended(fd) || has_kernel_all(fd, sock, wanted));
        // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns.
        let result = unsafe { receive_now(fd, sock, buffers, done, flags) };
        match result {
            Received::Bytes(len) if len > 0 && len < wanted && peeks_at_all && !are_all_there => {
                if is_nonblocking(fd, sock, flags) {
                    return CallOutcome::Done(len as ssize_t);
                }
                let wait = wait.get_or_insert_with(|| Wait::new(fd, libc::POLLIN, libc::SO_RCVTIMEO));
                match wait.wait_for_bytes(wanted) {
                    Ok(are_there) => has_waited = are_there,
                    Err(_) => return CallOutcome::Done(len as ssize_t),
                }
            }
            Received::Bytes(len) if len > 0 => {
                done += len;
                if done >= wanted || !waits_for_all {
                    return CallOutcome::Done(done as ssize_t);
                }
            }
            Received::Bytes(_) => return CallOutcome::Done(done as ssize_t),
            Received::Error(_) if done > 0 => return CallOutcome::Done(done as ssize_t),
            Received::Error(number) => return fail(number),
            Received::PassToKernel if done == 0 => return CallOutcome::PassToKernel,
            Received::PassToKernel | Received::WouldBlock => {}
        }
        if matches!(result, Received::WouldBlock | Received::PassToKernel) {
            let ended = if is_nonblocking(fd, sock, flags) {
                Some(libc::EAGAIN)
            } else {
                wait.get_or_insert_with(|| Wait::new(fd, libc::POLLIN, libc::SO_RCVTIMEO)).wait().err()
            };
            if let Some(number) = ended {
                return if done > 0 { CallOutcome::Done(done as ssize_t) } else { fail(number) };
            }
        }
    }
}

/// Receives from what was left in the ring when the program restricted its system calls.
///
/// # Safety
/// The buffers are the program's, and can be written.
unsafe fn receive_when_confined(sock: &Sock, buffers: &[iovec], flags: c_int) -> CallOutcome {
    let Some(link) = sock.link().filter(|_| sock.unread_bytes() > 0) else {
        return CallOutcome::PassToKernel;
    };
    let Some(_held) = link.incoming.lock_receiver() else {
        return fail(libc::EAGAIN);
    };
    // SAFETY: the receiver's lock is held; the buffers can be written, by this function's contract.
    match unsafe { link.incoming.pull(buffers, 0, mode_of(flags)) } {
        // Another thread has received them, or no byte was requested.
        0 => CallOutcome::PassToKernel,
        len => CallOutcome::Done(len as isize),
    }
}

/// Returns what the flags of a receive do with bytes in a ring.
fn mode_of(flags: c_int) -> ReceiveMode {
    match flags {
        _ if flags & libc::MSG_PEEK != 0 => ReceiveMode::Peek,
        _ if flags & libc::MSG_TRUNC != 0 => ReceiveMode::Discard,
        _ => ReceiveMode::Consume,
    }
}

/// Returns whether `count` bytes wait in the kernel, and none in the ring.
fn has_kernel_all(fd: c_int, sock: &Sock, count: usize) -> bool {
    sock.unread_bytes() == 0 && tcp::unread_bytes(fd) >= count as u64
}

/// Receives when no bytes are requested. TCP waits until there are some nevertheless, however few: SO_RCVLOWAT, which
/// `poll` respects, does not count.
fn receive_zero_bytes(fd: c_int, sock: &Sock, link: &Link, flags: c_int) -> CallOutcome {
    let mut wait = None;
    loop {
        if sock.has_returned() {
            return CallOutcome::PassToKernel;
        }
        if link.incoming.snapshot().unread_bytes > 0 && link.incoming.is_reached(0) {
            return CallOutcome::Done(0);
        }
        let error = sock.take_pending_error();
        if error != 0 {
            return fail(error);
        }
        match peek(fd) {
            Received::Error(number) => {
                // This call reports the error, and no later one does.
                sock.on_peer_end(fd);
                sock.set_pending_error(0);
                return fail(number);
            }
            Received::Bytes(_) => return CallOutcome::Done(0),
            Received::WouldBlock | Received::PassToKernel => {}
        }
        if is_nonblocking(fd, sock, flags) {
            return fail(libc::EAGAIN);
        }
        let wait = wait.get_or_insert_with(|| Wait::new(fd, libc::POLLIN, libc::SO_RCVTIMEO));
        if let Err(number) = wait.wait() {
            return fail(number);
        }
    }
}

/// # Safety
/// The contract of [`receive`].
unsafe fn receive_now(fd: c_int, sock: &Sock, buffers: &[iovec], from_byte: usize, flags: c_int) -> Received {
    if let Some(link) = sock.link() {
        // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns.
        return unsafe { receive_paired(fd, sock, link, buffers, from_byte, flags) };
    }
    if from_byte == 0 {
        return Received::PassToKernel;
    }
    // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns.
    unsafe { receive_from_kernel(fd, buffers, from_byte, usize::MAX, flags) }
}

/// Period for which a thread that polls repeatedly uses the kernel's report of an empty receive queue.
const KERNEL_CHECK_PERIOD_NS: u64 = 20_000;

/// Maximum number of times that a receive polls again.
const POLLS_MAX: u32 = 4;

/// # Safety
/// The contract of [`receive`].
unsafe fn receive_before_ring(
    fd: c_int,
    link: &Link,
    buffers: &[iovec],
    from_byte: usize,
    max_bytes: u64,
    flags: c_int,
) -> Received {
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns.
    let result = unsafe { receive_from_kernel(fd, buffers, from_byte, max_bytes, flags) };
    if let Received::Bytes(len) = result
        && flags & libc::MSG_PEEK == 0
    {
        link.incoming.add_read_by_tcp(len as u64);
    }
    result
}

/// Receives all available bytes: by TCP before the ring, from the ring, and by TCP after it. Programs treat a short
/// read as an empty socket.
///
/// # Safety
/// The contract of [`receive`].
unsafe fn receive_paired(
    fd: c_int,
    sock: &Sock,
    link: &Link,
    buffers: &[iovec],
    from_byte: usize,
    flags: c_int,
) -> Received {
    let Some(_held) = link.incoming.lock_receiver() else { return Received::Error(libc::EAGAIN) };
    let mode = mode_of(flags);
    // The bytes that are available may change between two polls.
    for _ in 0..POLLS_MAX {
        let before_bytes = link.incoming.bytes_before(|| tcp::unread_bytes(fd));
        let mut end_byte = from_byte;
        if before_bytes > 0 {
            // SAFETY: by this function's contract, the buffers are the program's and can be written until the call
            // returns.
            match unsafe { receive_before_ring(fd, link, buffers, from_byte, before_bytes, flags) } {
                Received::Bytes(len) if len as u64 == before_bytes => end_byte += len,
                other => return other,
            }
        }
        let passed_bytes = if mode == ReceiveMode::Peek { before_bytes } else { 0 };
        let len = if link.incoming.is_reached(passed_bytes) {
            let unread_bytes = link.incoming.snapshot().unread_bytes as usize;
            if mode != ReceiveMode::Discard && is_inaccessible(buffers, end_byte, unread_bytes, Access::Write)
            {
                let len = end_byte - from_byte;
                return if len > 0 { Received::Bytes(len) } else { Received::Error(libc::EFAULT) };
            }
            // SAFETY: `_held` is the receiver's lock; the buffers can be written until the call returns, by this
            // function's contract.
            unsafe { link.incoming.pull(buffers, end_byte, mode) }
        } else {
            0
        };
        if len > 0 {
            received(sock, link, len, mode);
        }
        end_byte += len;
        if end_byte > from_byte {
            let RingSnapshot { unread_bytes, is_closed } = link.incoming.snapshot();
            let left_bytes = if mode == ReceiveMode::Peek { len as u64 } else { 0 };
            if is_closed && unread_bytes == left_bytes && passed_bytes == 0 && link.incoming.is_reached(0) {
                // SAFETY: by this function's contract, the buffers are the program's and can be written until the call
                // returns.
                end_byte += unsafe { receive_after_ring(fd, sock, buffers, end_byte, flags) };
            }
            return Received::Bytes(end_byte - from_byte);
        }
        let snapshot = link.incoming.snapshot();
        if snapshot.unread_bytes > 0 {
            continue;
        }
        if snapshot.is_closed && link.incoming.is_drained() {
            return after_ring(fd, sock, link, buffers, from_byte, flags);
        }
        let now_ns = clock::now_ns();
        if is_nonblocking(fd, sock, flags)
            && now_ns.wrapping_sub(sock.kernel_checked_ns()) < KERNEL_CHECK_PERIOD_NS
        {
            return Received::WouldBlock;
        }
        sock.set_kernel_checked_ns(now_ns);
        // The kernel knows whether the peer has ended. Bytes that it sent just before may be in the ring: poll again.
        let peeked = peek(fd);
        if let Received::Error(number) = peeked {
            // The kernel reports an error once.
            sock.set_pending_error(number);
        }
        match peeked {
            Received::WouldBlock => return Received::WouldBlock,
            _ if link.incoming.snapshot().unread_bytes > 0 => {}
            Received::Bytes(0) | Received::Error(_) => sock.on_peer_end(fd),
            _ if link.incoming.snapshot().is_closed || !link.incoming.is_drained() => {}
            // Invariant: a peer ends its ring before it sends by TCP again.
            _ => return end_with_unannounced(fd, sock),
        }
    }
    Received::WouldBlock
}

/// Ends a connection with an error at both ends, because the kernel has bytes that the peer's library did not send and
/// their position among those of the ring is unknown.
fn end_with_unannounced(fd: c_int, sock: &Sock) -> Received {
    sock.demote(PathReason::Unannounced);
    if let Some(stats) = sock.stats() {
        // Also if the peer has ended the rings in the meantime.
        stats.why.set(PathReason::Unannounced as u64);
    }
    tcp::reset(fd);
    sock_diag::warn_unannounced(sock.addresses());
    // The kernel would report the reset once more.
    tcp::take_error(fd);
    Received::Error(libc::ECONNRESET)
}

/// Receives the bytes that the kernel has after those of the ring into the rest of the buffers. Returns their number.
///
/// # Safety
/// The contract of [`receive`].
unsafe fn receive_after_ring(
    fd: c_int,
    sock: &Sock,
    buffers: &[iovec],
    from_byte: usize,
    flags: c_int,
) -> usize {
    let has_strayed = sock.link().is_some_and(Link::was_bypassed);
    // A receive ends before an urgent byte.
    if len_bytes(buffers) == from_byte || has_strayed || tcp::is_at_mark(fd) {
        return 0;
    }
    // SAFETY: by this function's contract, the buffers are the program's and can be written until the call returns.
    match unsafe { receive_from_kernel(fd, buffers, from_byte, usize::MAX, flags) } {
        Received::Bytes(len) => len,
        Received::Error(number) => {
            sock.set_pending_error(number);
            0
        }
        Received::WouldBlock | Received::PassToKernel => 0,
    }
}

fn received(sock: &Sock, link: &Link, len: usize, mode: ReceiveMode) {
    if mode == ReceiveMode::Peek {
        return;
    }
    sock.usage.count_in_ring(Direction::Receive, len);
    if let Some(stats) = sock.stats() {
        stats.received_bytes.add(len as u64);
    }
    if link.incoming.takes_space_wake() {
        link.doorbell.notify();
    }
}

/// Receives by TCP after all bytes of an ended ring were received.
fn after_ring(
    fd: c_int,
    sock: &Sock,
    link: &Link,
    buffers: &[iovec],
    from_byte: usize,
    flags: c_int,
) -> Received {
    let error = sock.take_pending_error();
    if error != 0 {
        return Received::Error(error);
    }
    if link.was_bypassed() {
        return end_with_unannounced(fd, sock);
    }
    if link.outgoing.snapshot().is_closed && from_byte == 0 {
        return Received::PassToKernel;
    }
    // SAFETY: the program's buffers.
    unsafe { receive_from_kernel(fd, buffers, from_byte, usize::MAX, flags) }
}
