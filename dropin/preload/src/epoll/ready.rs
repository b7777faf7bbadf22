//! Events of members, members that waits poll, and members whose peers were notified that a thread sleeps.

use std::ffi::c_int;
use std::ptr;

use farcall_stats::PathReason;
use libc::{epoll_event, pollfd};

use super::members::{State, Suppression};
use super::tags::Tagged;
use super::{EDGE, ONE_SHOT};
use crate::sock::SockRef;
use crate::{libc_next, readiness};

pub(super) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Number of descriptors up to which all of an object's members are checked by each wait.
const CHECKED_ITEMS_MAX: usize = 256;
pub(super) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl State {
    /// Returns the events with which a member would be reported, 0 for none; `None` if the member has ended.
    pub(super) fn pending(&mut self, fd: c_int) -> Option<u32> {
        let Some(member) = self.member(fd) else { return Some(0) };
        let (wanted, Some(ring)) = (member.events, &mut member.ring) else { return Some(0) };
        if ring.suppression != Suppression::None {
            return Some(0);
        }
        if ring.sock.is_inherited() {
            ring.sock.demote(PathReason::Forked);
        }
        let mut from_query = 0;
        // After the end of the ring to the peer, or before its beginning, the kernel knows about free space.
        let is_kernels_space = wanted & EDGE == 0
            && wanted & OUT != 0
            && readiness::readiness(fd, &ring.sock, libc::POLLOUT).kernel_events & libc::POLLOUT != 0;
        // While bytes of a ring that has ended are unread, the kernel alone knows of an end and of errors.
        let is_ending =
            wanted & EDGE == 0 && ring.sock.link().is_some_and(|link| link.incoming.snapshot().is_closed);
        if ring.must_query || is_kernels_space || is_ending {
            from_query = query_kernel(fd, &ring.sock);
            let says_more =
                readiness::readiness(fd, &ring.sock, libc::POLLOUT).kernel_events & libc::POLLOUT != 0;
            ring.is_kernel_quiet = from_query & !OUT == 0 && !says_more;
        }
        if ring.sock.has_returned() {
            return None;
        }
        let interest = wanted & !(EDGE | ONE_SHOT) | ALWAYS;
        let by_rings = readiness::readiness(fd, &ring.sock, poll_events(interest));
        let mut from_kernel = from_query & interest;
        if by_rings.kernel_events & libc::POLLOUT == 0 {
            from_kernel &= !OUT;
        }
        let ready = epoll_events(by_rings.ready) & interest | from_kernel;
        if wanted & EDGE == 0 {
            ring.must_query = from_kernel != 0;
            return Some(ready);
        }
        let has_come = ring.sock.link().is_some_and(|link| link.incoming.sent_bytes() != ring.seen_bytes);
        let has_space = ring.seen_full != ring.sock.full_count();
        let is_edge = (ready & IN != 0 && has_come) || (ready & OUT != 0 && has_space) || from_kernel != 0;
        if !is_edge {
            ring.must_query = false;
        }
        Some(if is_edge { ready } else { 0 })
    }

    /// Reports a member. `arrived_before` is the number of bytes that had arrived before the member was checked.
    pub(super) fn report(&mut self, fd: c_int, ready: u32, arrived_before: u64) -> Option<epoll_event> {
        // A report of readable bytes announces all of them, also those that arrived after the check: another report
        // would announce them twice. Without such a report they are another edge.
        let announced_bytes = if ready & IN != 0 { self.arrived_bytes(fd) } else { arrived_before };
        let member = self.member(fd)?;
        let (wanted, data, ring) = (member.events, member.data, member.ring.as_mut()?);
        ring.seen_bytes = announced_bytes;
        if wanted & EDGE != 0 {
            ring.must_query = false;
            if ready & OUT != 0 {
                ring.seen_full = ring.sock.full_count();
            }
        }
        if wanted & ONE_SHOT != 0 {
            ring.suppression = Suppression::OneShot;
        }
        Some(epoll_event { events: ready, u64: data })
    }

    /// Returns the number of bytes that have arrived in a member's ring since its connection moved; 0 without a ring.
    pub(super) fn arrived_bytes(&mut self, fd: c_int) -> u64 {
        self.ring(fd).and_then(|ring| Some(ring.sock.link()?.incoming.sent_bytes())).unwrap_or(0)
    }

    /// Searches hot members for ready ones, and for those that had become ready before these. Returns whether the
    /// kernel has more to report than before.
    pub(super) fn scan(&mut self) -> bool {
        let mut has_changed = false;
        loop {
            self.set_readable_hot();
            let (mut found, mut at) = (false, 0);
            while at < self.hot.len() {
                let fd = self.hot[at];
                let arrived_before = self.arrived_bytes(fd);
                let ready = if self.ring(fd).is_some_and(|ring| ring.found_events != 0) {
                    Some(0)
                } else {
                    self.pending(fd)
                };
                let Some(ready) = ready else {
                    self.leave_ring(fd);
                    has_changed = true;
                    continue;
                };
                if let Some(ring) = self.ring(fd)
                    && ready != 0
                {
                    (ring.found_events, ring.arrived_before) = (ready, arrived_before);
                    found = true;
                }
                at += 1;
            }
            // The cause of a ready member may have made another one ready that was checked before it.
            if !found || (self.hot.len() < 2 && !self.checks_all()) {
                return has_changed;
            }
        }
    }

    /// Returns whether all members have moved and are few: then their rings show what is ready, without the kernel.
    pub(super) fn checks_all(&self) -> bool {
        self.member_count == self.ring_member_count && self.members.len() <= CHECKED_ITEMS_MAX
    }

    /// Makes cold members hot of which the rings have bytes, if rings show all.
    fn set_readable_hot(&mut self) {
        if !self.checks_all() || self.hot.len() == self.member_count {
            return;
        }
        for fd in 0..self.members.len() as c_int {
            let is_readable = self.ring(fd).is_some_and(|ring| {
                !ring.is_hot && ring.sock.link().is_some_and(|link| link.incoming.snapshot().unread_bytes > 0)
            });
            if is_readable {
                self.set_hot(fd);
            }
        }
    }

    /// Returns the number of hot members that were found ready and are not reported yet.
    pub(super) fn ready_count(&mut self) -> usize {
        let is_found =
            |fd: &c_int| self.members[*fd as usize].as_ref().is_some_and(|member| member.is_found());
        self.hot.iter().filter(|fd| is_found(fd)).count()
    }

    /// Reports the members that were found ready, up to the capacity of `into`, and discards what was found. Returns
    /// their number. If it could not report all, members are reported in the order of the kernel's list from now on.
    pub(super) fn report_ready(&mut self, into: &mut [epoll_event]) -> usize {
        let (mut found, mut first_left) = (0, None);
        for at in 0..self.hot.len() {
            let fd = self.hot[at];
            let Some(ring) = self.ring(fd) else { continue };
            let (ready, arrived_before) = (std::mem::take(&mut ring.found_events), ring.arrived_before);
            if ready == 0 {
                continue;
            }
            if found == into.len() {
                first_left.get_or_insert(at);
                continue;
            }
            if let Some(event) = self.report(fd, ready, arrived_before) {
                into[found] = event;
                found += 1;
            }
        }
        if let Some(at) = first_left {
            self.hot.rotate_left(at);
            self.begin_order();
        }
        found
    }

    /// Makes all members cold. Returns whether one is ready nevertheless.
    pub(super) fn make_cold(&mut self) -> bool {
        if self.is_ordered() {
            self.order_hot();
            return false;
        }
        let hot = std::mem::take(&mut self.hot);
        for fd in &hot {
            if let Some(ring) = self.ring(*fd) {
                ring.is_hot = false;
                if !ring.is_armed && ring.suppression == Suppression::None {
                    self.arm(*fd);
                }
            }
        }
        let mut is_ready = false;
        for fd in hot {
            if self.pending(fd) != Some(0) {
                self.set_hot(fd);
                is_ready = true;
            }
        }
        is_ready
    }

    /// Called before a thread returns to its program: threads that sleep must be notified of members that it does not
    /// poll.
    pub(super) fn before_return(&mut self) {
        if self.sleepers == 0 {
            return;
        }
        if self.make_cold() {
            for fd in std::mem::take(&mut self.hot) {
                let Some(ring) = self.ring(fd) else { continue };
                ring.is_hot = false;
                self.arm(fd);
                self.wake_sleeper(fd);
            }
        }
    }

    /// Handles the first `found` events that the kernel reported, and stores the program's in `into`. Returns their
    /// number, and whether there were others.
    pub(super) fn translate(&mut self, found: usize, into: &mut [epoll_event]) -> (usize, bool) {
        let mut kept = 0;
        for at in 0..found {
            let event = self.reported[at];
            match Tagged::of(event.u64) {
                Tagged::Program => {
                    into[kept] = event;
                    kept += 1;
                }
                Tagged::Waker => self.take_woken(),
                Tagged::Doorbell(fd) => {
                    if self.on_doorbell(fd) {
                        self.missed.push(fd);
                    }
                    self.set_hot(fd);
                }
                Tagged::Socket(fd) => {
                    self.record_kernel_event(fd, event.events);
                    self.set_hot(fd);
                }
            }
        }
        (kept, kept < found)
    }
}

/// Queries the kernel for the events of a socket.
pub(super) fn query_kernel(fd: c_int, sock: &SockRef) -> u32 {
    let events =
        libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI | libc::POLLRDNORM | libc::POLLWRNORM;
    let mut entry = pollfd { fd, events, revents: 0 };
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one entry, and a time.
    unsafe { libc_next::ppoll(&raw mut entry, 1, &raw const none, ptr::null()) };
    if entry.revents & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
        sock.on_peer_end(fd);
    }
    epoll_events(entry.revents)
}

/// Converts events of epoll to poll's: common events have the same numbers.
fn poll_events(events: u32) -> i16 {
    (events & 0x3FFF) as i16
}

fn epoll_events(events: i16) -> u32 {
    events as u16 as u32
}
