//! Sending.

use std::ffi::c_int;

use farcall_stats::PathReason;
use libc::{iovec, ssize_t};

use super::buffers::{is_inaccessible, len_bytes};
use super::kernel::{count_transfer, kernel_send, send_rest};
use super::wait::{Wait, is_nonblocking};
use super::{CallOutcome, fail};
use crate::pointers::Access;
use crate::sock::{Direction, Link, Sock, Stage};
use crate::{confined, tcp};

/// Flags of a send that the rings know.
const SEND_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;

/// Sends.
///
/// # Safety
/// The buffers are the program's, and can be read.
pub unsafe fn send(fd: c_int, sock: &Sock, buffers: &[iovec], flags: c_int) -> CallOutcome {
    if confined::is_confined() {
        return CallOutcome::PassToKernel;
    }
    if flags & !SEND_FLAGS != 0 {
        sock.demote(PathReason::KernelFeature);
    }
    let Some(link) = sock.link() else {
        if sock.stage() == Stage::Tcp {
            return CallOutcome::PassToKernel;
        }
        // A thread that pairs the ends in the meantime does not begin the ring before this one has left the kernel.
        let kernel_call = sock.enter_kernel(Direction::Send);
        if sock.stage() != Stage::Paired {
            // SAFETY: by this function's contract, the buffers are the program's and can be read until the call
            // returns.
            let sent = unsafe { kernel_send(fd, buffers, flags) };
            drop(kernel_call);
            count_transfer(fd, sock, Direction::Send, sent);
            return CallOutcome::Done(sent);
        }
        drop(kernel_call);
        // SAFETY: by this function's contract, the buffers are the program's and can be read until the call returns.
        return unsafe { send(fd, sock, buffers, flags) };
    };
    if sock.is_inherited() {
        sock.demote(PathReason::Forked);
    }
    let error = sock.take_pending_error();
    if error != 0 {
        return fail(error);
    }
    if sock.usage.count_in_ring(Direction::Send, len_bytes(buffers)) {
        sock.demote(PathReason::LargeTransfers);
    }
    // SAFETY: by this function's contract, the buffers are the program's and can be read until the call returns.
    unsafe { send_in_ring(fd, sock, link, buffers, flags) }
}

/// Returns whether the ring to the peer is in use, or begins now: the peer maps it, and the kernel knows how many bytes
/// were sent by TCP before it.
fn is_ring_begun(fd: c_int, sock: &Sock, link: &Link) -> bool {
    if link.outgoing.has_begun() {
        return true;
    }
    // In this order: a thread that leaves the kernel is counted there.
    if !link.is_mapped_by_peer() || link.outgoing.snapshot().is_closed || sock.is_in_kernel(Direction::Send) {
        return false;
    }
    let Some(after_bytes) = tcp::written_bytes(fd) else { return false };
    link.outgoing.begin(after_bytes);
    true
}

/// # Safety
/// The contract of [`send`].
unsafe fn send_in_ring(fd: c_int, sock: &Sock, link: &Link, buffers: &[iovec], flags: c_int) -> CallOutcome {
    let (all, mut done) = (len_bytes(buffers), 0);
    let mut wait = None;
    loop {
        let Some(held) = link.outgoing.lock_sender() else { return fail(libc::EAGAIN) };
        if !is_ring_begun(fd, sock, link) {
            let kernel_call = sock.enter_kernel(Direction::Send);
            drop(held);
            let sent = send_rest(fd, buffers, done, flags);
            drop(kernel_call);
            return CallOutcome::Done(if sent < 0 && done > 0 {
                done as ssize_t
            } else {
                sent + done as ssize_t
            });
        }
        // No more bytes than the ring has are copied at once.
        if is_inaccessible(buffers, done, link.outgoing.len_bytes(), Access::Read)
            && !link.outgoing.snapshot().is_closed
        {
            return if done > 0 { CallOutcome::Done(done as ssize_t) } else { fail(libc::EFAULT) };
        }
        // SAFETY: `held` is the sender's lock; the buffers can be read until the call returns, by this function's
        // contract.
        let pushed = unsafe { link.outgoing.push(buffers, done) };
        if pushed.is_some_and(|pushed| link.outgoing.lengthen(all - done - pushed))
            && let Some(stats) = sock.stats()
        {
            stats.ring_bytes.set(link.outgoing.len_bytes() as u64);
        }
        drop(held);
        let Some(pushed) = pushed else {
            let sent = send_rest(fd, buffers, done, flags);
            return CallOutcome::Done(if sent < 0 {
                if done > 0 { done as ssize_t } else { sent }
            } else {
                sent + done as ssize_t
            });
        };
        done += pushed;
        if pushed > 0 {
            if let Some(stats) = sock.stats() {
                stats.sent_bytes.add(pushed as u64);
            }
            if link.outgoing.takes_data_wake() {
                link.doorbell.notify();
            }
        }
        if done == all {
            return CallOutcome::Done(done as ssize_t);
        }
        sock.count_full();
        // Another thread may sleep that had found free space.
        link.outgoing.arm_space();
        if link.outgoing.has_space() {
            continue;
        }
        let ended = if is_nonblocking(fd, sock, flags) {
            Some(libc::EAGAIN)
        } else {
            let wait = wait.get_or_insert_with(|| Wait::new(fd, libc::POLLOUT, libc::SO_SNDTIMEO));
            wait.wait_for_space(sock, link).err()
        };
        if let Some(number) = ended {
            return if done > 0 { CallOutcome::Done(done as ssize_t) } else { fail(number) };
        }
    }
}
