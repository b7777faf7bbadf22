//! Readiness of a connection, and the notification of its peer that a thread sleeps.

use std::ffi::c_int;

use farcall_stats::PathReason;

use crate::ring::Ring;
use crate::sock::{Link, Sock};
use crate::switch::{RingSnapshot, Switch};
use crate::tcp;

/// Events of poll for bytes that can be received.
pub const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// Readiness of a connection by its rings, and events that the kernel must be queried for.
#[derive(Clone, Copy)]
pub struct Readiness {
    /// Requested events that are ready.
    pub ready: i16,
    /// Events that the kernel must be queried for.
    pub kernel_events: i16,
}

/// Polls a connection for poll's `events`.
pub fn readiness(fd: c_int, sock: &Sock, events: i16) -> Readiness {
    readiness_with(fd, sock, events, 0)
}

/// Polls a connection for poll's `events`; fewer than `enough_bytes` bytes are not readable.
pub fn readiness_with(fd: c_int, sock: &Sock, events: i16, enough_bytes: u64) -> Readiness {
    let Some(link) = sock.link() else { return Readiness { ready: 0, kernel_events: events } };
    let (mut ready, mut kernel_events) = (0, events);
    // Bytes that were sent by TCP before the ring may not have arrived yet.
    let has_error = sock.has_pending_error();
    let unread_bytes = link.incoming.snapshot().unread_bytes;
    let low_water_bytes = u64::from(sock.low_water_bytes()).max(enough_bytes);
    let is_readable = unread_bytes > 0
        && if link.incoming.is_reached(0) {
            is_enough(fd, low_water_bytes, unread_bytes)
        } else {
            is_enough_across(fd, low_water_bytes, &link.incoming, unread_bytes)
        };
    if enough_bytes > 0 {
        // The kernel would report any number of bytes.
        kernel_events = kernel_events & !IN | libc::POLLRDHUP;
    }
    if is_readable || has_error {
        ready |= events & IN;
    }
    if has_error {
        ready |= libc::POLLERR;
    }
    let RingSnapshot { is_closed, .. } = link.outgoing.snapshot();
    if link.outgoing.has_begun() && !is_closed {
        // The kernel would report free space.
        kernel_events = kernel_events & !OUT | libc::POLLRDHUP;
        if link.outgoing.has_space() {
            ready |= events & OUT;
        }
    }
    Readiness { ready, kernel_events }
}

/// Returns whether a receiver is notified of bytes that wait in the ring, together with those behind it in the kernel
/// (SO_RCVLOWAT).
fn is_enough(fd: c_int, low_water_bytes: u64, unread_bytes: u64) -> bool {
    unread_bytes >= low_water_bytes
        || unread_bytes + tcp::unread_bytes(fd) >= low_water_bytes
        // An end, or an error.
        || tcp::is_ended(fd)
}

/// Returns whether bytes that were sent by TCP before the ring, too few by themselves for SO_RCVLOWAT, are enough
/// together with those in the ring. The kernel reports any number of them if the option has its default.
fn is_enough_across(fd: c_int, low_water_bytes: u64, incoming: &Switch<Ring>, unread_bytes: u64) -> bool {
    if low_water_bytes <= 1 {
        return false;
    }
    let waiting_bytes = tcp::unread_bytes(fd);
    incoming.have_arrived_before(waiting_bytes) && unread_bytes + waiting_bytes >= low_water_bytes
}

/// Notifies the peer that a thread sleeps; the caller must poll once more.
pub fn arm(sock: &Sock) {
    let Some(link) = sock.link() else { return };
    sock.waiters.add();
    arm_ring(link);
    if let Some(stats) = sock.stats() {
        stats.sleeps.increment();
    }
}

/// Notifies the peer again that a thread sleeps: it has sent a notification since. The caller must poll once more.
pub fn rearm(sock: &Sock) {
    if let Some(link) = sock.link() {
        arm_ring(link);
    }
}

/// Withdraws the notification that a thread sleeps until bytes arrive. Returns whether the peer has not reacted to it.
pub fn withdraw(sock: &Sock) -> bool {
    let Some(link) = sock.link() else { return true };
    let sent_bytes = link.incoming.sent_bytes();
    if !link.incoming.takes_data_wake() {
        return false;
    }
    // Another thread may have notified it, too, before the counter was read; or it does so after this.
    if sock.waiters.count() > 1 {
        arm_ring(link);
        if link.incoming.sent_bytes() != sent_bytes {
            // It may have missed these bytes.
            sock.demote(PathReason::NoResources);
        }
    }
    true
}

/// Announces that a thread sleeps until bytes arrive and, if the ring to the peer is full, until there is free space. A
/// thread that waits for space does not sleep if there is some; the thread that fills the ring concurrently announces
/// it (`io::send`).
fn arm_ring(link: &Link) {
    link.incoming.arm_data();
    if !link.outgoing.has_space() {
        link.outgoing.arm_space();
    }
}

/// Called when a thread sleeps no more; other threads may still sleep.
pub fn disarm(sock: &Sock) {
    let Some(link) = sock.link() else { return };
    if sock.waiters.remove() > 0 {
        arm_ring(link);
    }
}
