//! Sending.

use std::ffi::c_int;

use farcall_stats::PathReason;
use libc::{iovec, ssize_t};

use super::buffers::{is_bad, len_bytes};
use super::kernel::{kernel_send, send_rest, used};
use super::wait::{Wait, is_nonblocking};
use super::{Way, fail};
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
pub unsafe fn send(fd: c_int, sock: &Sock, buffers: &[iovec], flags: c_int) -> Way {
    if confined::is_confined() {
        return Way::Kernel;
    }
    if flags & !SEND_FLAGS != 0 {
        sock.demote(PathReason::KernelFeature);
    }
    let Some(link) = sock.link() else {
        if sock.stage() == Stage::Tcp {
            return Way::Kernel;
        }
        // A thread that meets the peer in the meantime lets the ring wait until this one has left the kernel.
        let inside = sock.enter_kernel(Direction::Send);
        if sock.stage() != Stage::Met {
            // SAFETY: by this function's contract, the buffers are the program's and can be read until the call
            // returns.
            let sent = unsafe { kernel_send(fd, buffers, flags) };
            drop(inside);
            used(fd, sock, Direction::Send, sent);
            return Way::Done(sent);
        }
        drop(inside);
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
    if sock.uses.count_moved(Direction::Send, len_bytes(buffers)) {
        sock.demote(PathReason::LargeTransfers);
    }
    // SAFETY: by this function's contract, the buffers are the program's and can be read until the call returns.
    unsafe { send_in_ring(fd, sock, link, buffers, flags) }
}

/// Whether the ring to the peer is in use, or can be from now on: the peer maps it, and the kernel knows how many bytes
/// went by TCP before it.
fn begins_ring(fd: c_int, sock: &Sock, link: &Link) -> bool {
    if link.out.has_begun() {
        return true;
    }
    // In this order: a thread that leaves the kernel is counted there.
    if !link.is_mapped_by_peer() || link.out.look().is_closed || sock.is_in_kernel(Direction::Send) {
        return false;
    }
    let Some(after_bytes) = tcp::written_bytes(fd) else { return false };
    link.out.begin(after_bytes);
    true
}

/// # Safety
/// As [`send`].
unsafe fn send_in_ring(fd: c_int, sock: &Sock, link: &Link, buffers: &[iovec], flags: c_int) -> Way {
    let (all, mut done) = (len_bytes(buffers), 0);
    let mut wait = None;
    loop {
        let Some(held) = link.out.lock_sender() else { return fail(libc::EAGAIN) };
        if !begins_ring(fd, sock, link) {
            let inside = sock.enter_kernel(Direction::Send);
            drop(held);
            let sent = send_rest(fd, buffers, done, flags);
            drop(inside);
            return Way::Done(if sent < 0 && done > 0 { done as ssize_t } else { sent + done as ssize_t });
        }
        // No more than the ring holds is copied at once.
        if is_bad(buffers, done, link.out.len_bytes(), Access::Read) && !link.out.look().is_closed {
            return if done > 0 { Way::Done(done as ssize_t) } else { fail(libc::EFAULT) };
        }
        // SAFETY: `held` is the sender's lock; the buffers can be read until the call returns, by this function's
        // contract.
        let pushed = unsafe { link.out.push(buffers, done) };
        if pushed.is_some_and(|pushed| link.out.lengthen(all - done - pushed))
            && let Some(shown) = sock.shown()
        {
            shown.ring_bytes.set(link.out.len_bytes() as u64);
        }
        drop(held);
        let Some(pushed) = pushed else {
            let sent = send_rest(fd, buffers, done, flags);
            return Way::Done(if sent < 0 {
                if done > 0 { done as ssize_t } else { sent }
            } else {
                sent + done as ssize_t
            });
        };
        done += pushed;
        if pushed > 0 {
            if let Some(shown) = sock.shown() {
                shown.sent_bytes.add(pushed as u64);
            }
            if link.out.takes_data_wake() {
                link.door.ring();
            }
        }
        if done == all {
            return Way::Done(done as ssize_t);
        }
        sock.count_full();
        // Another thread may sleep, for which there was room when it looked.
        link.out.arm_room();
        if link.out.has_room() {
            continue;
        }
        let ended = if is_nonblocking(fd, sock, flags) {
            Some(libc::EAGAIN)
        } else {
            let wait = wait.get_or_insert_with(|| Wait::new(fd, libc::POLLOUT, libc::SO_SNDTIMEO));
            wait.wait_for_room(sock, link).err()
        };
        if let Some(number) = ended {
            return if done > 0 { Way::Done(done as ssize_t) } else { fail(number) };
        }
    }
}
