//! Events of members, members that waits poll, and members whose peers were notified that a thread sleeps.

use std::ffi::c_int;
use std::ptr;

use farcall_stats::PathReason;
use libc::{epoll_event, pollfd};

use super::members::{Off, State};
use super::tags::Tagged;
use super::{EDGE, ONE_SHOT};
use crate::sock::SockRef;
use crate::{readiness, real};

pub(super) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Number of descriptors up to which all of an object's members are checked by each wait.
const CHECKED_ITEMS_MAX: usize = 256;
pub(super) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl State {
    /// Returns the events with which a member would be reported, 0 for none; `None` if the member has ended.
    pub(super) fn pending(&mut self, fd: c_int) -> Option<u32> {
        let Some(item) = self.item(fd) else { return Some(0) };
        let (wanted, Some(ring)) = (item.events, &mut item.ring) else { return Some(0) };
        if ring.off != Off::No {
            return Some(0);
        }
        if ring.sock.is_inherited() {
            ring.sock.demote(PathReason::Forked);
        }
        let mut asked = 0;
        // After the end of the ring to the peer, or before its beginning, room is in the kernel.
        let is_kernels_room = wanted & EDGE == 0
            && wanted & OUT != 0
            && readiness::readiness(fd, &ring.sock, libc::POLLOUT).ask & libc::POLLOUT != 0;
        // While bytes of a ring that has ended are unread, the kernel alone knows of an end and of errors.
        let is_ending = wanted & EDGE == 0 && ring.sock.link().is_some_and(|link| link.inn.look().is_closed);
        if ring.asks_kernel || is_kernels_room || is_ending {
            asked = ask_kernel(fd, &ring.sock);
            let says_more = readiness::readiness(fd, &ring.sock, libc::POLLOUT).ask & libc::POLLOUT != 0;
            ring.is_kernel_quiet = asked & !OUT == 0 && !says_more;
        }
        if ring.sock.is_over() {
            return None;
        }
        let interest = wanted & !(EDGE | ONE_SHOT) | ALWAYS;
        let shown = readiness::readiness(fd, &ring.sock, poll_events(interest));
        let mut from_kernel = asked & interest;
        if shown.ask & libc::POLLOUT == 0 {
            from_kernel &= !OUT;
        }
        let ready = epoll_events(shown.ready) & interest | from_kernel;
        if wanted & EDGE == 0 {
            ring.asks_kernel = from_kernel != 0;
            return Some(ready);
        }
        let has_come = ring.sock.link().is_some_and(|link| link.inn.sent_bytes() != ring.seen_bytes);
        let has_room = ring.seen_full != ring.sock.full_count();
        let is_edge = (ready & IN != 0 && has_come) || (ready & OUT != 0 && has_room) || from_kernel != 0;
        if !is_edge {
            ring.asks_kernel = false;
        }
        Some(if is_edge { ready } else { 0 })
    }

    /// Reports a member.
    pub(super) fn report(&mut self, fd: c_int, ready: u32) -> Option<epoll_event> {
        let item = self.item(fd)?;
        let (wanted, data, ring) = (item.events, item.data, item.ring.as_mut()?);
        if wanted & EDGE != 0 {
            ring.asks_kernel = false;
            if ready & OUT != 0 {
                ring.seen_full = ring.sock.full_count();
            }
        }
        if wanted & ONE_SHOT != 0 {
            ring.off = Off::Reported;
        }
        Some(epoll_event { events: ready, u64: data })
    }

    /// Marks what is ready among hot members, and what had become ready before it. Whether the kernel has more to
    /// report than before.
    pub(super) fn mark(&mut self) -> bool {
        let mut has_changed = false;
        loop {
            self.heat_readable();
            let (mut found, mut at) = (false, 0);
            while at < self.hot.len() {
                let fd = self.hot[at];
                // Counted before the check: bytes that arrive later are another edge.
                let counted = self.ring(fd).and_then(|ring| Some(ring.sock.link()?.inn.sent_bytes()));
                let ready = if self.ring(fd).is_some_and(|ring| ring.marked != 0) {
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
                    (ring.marked, ring.counted_bytes) = (ready, counted.unwrap_or(ring.seen_bytes));
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
        self.members == self.ring_items && self.items.len() <= CHECKED_ITEMS_MAX
    }

    /// Makes cold members hot of which the rings have bytes, if rings show all.
    fn heat_readable(&mut self) {
        if !self.checks_all() || self.hot.len() == self.members {
            return;
        }
        for fd in 0..self.items.len() as c_int {
            let is_readable = self.ring(fd).is_some_and(|ring| {
                !ring.is_hot && ring.sock.link().is_some_and(|link| link.inn.look().unread_bytes > 0)
            });
            if is_readable {
                self.heat(fd);
            }
        }
    }

    /// Returns the number of hot members that are marked.
    pub(super) fn marks(&mut self) -> usize {
        let is_marked = |fd: &c_int| self.items[*fd as usize].as_ref().is_some_and(|item| item.is_marked());
        self.hot.iter().filter(|fd| is_marked(fd)).count()
    }

    /// Reports marked members as far as there is room, and takes all marks away. Returns how many it reported. If it
    /// reported not all, members are reported in the order of the kernel's list from now on.
    pub(super) fn report_marked(&mut self, into: &mut [epoll_event]) -> usize {
        let (mut found, mut first_left) = (0, None);
        for at in 0..self.hot.len() {
            let fd = self.hot[at];
            let Some(ring) = self.ring(fd) else { continue };
            let (ready, counted_bytes) = (std::mem::take(&mut ring.marked), ring.counted_bytes);
            if ready == 0 {
                continue;
            }
            if found == into.len() {
                first_left.get_or_insert(at);
                continue;
            }
            if let Some(event) = self.report(fd, ready) {
                into[found] = event;
                found += 1;
            }
            if let Some(ring) = self.ring(fd) {
                ring.seen_bytes = counted_bytes;
            }
        }
        if let Some(at) = first_left {
            self.hot.rotate_left(at);
            self.begin_order();
        }
        found
    }

    /// Makes all members cold. Returns whether one is ready nevertheless.
    pub(super) fn cool(&mut self) -> bool {
        if self.is_ordered() {
            self.order_hot();
            return false;
        }
        let hot = std::mem::take(&mut self.hot);
        for fd in &hot {
            if let Some(ring) = self.ring(*fd) {
                ring.is_hot = false;
                if !ring.is_armed && ring.off == Off::No {
                    self.arm(*fd);
                }
            }
        }
        let mut is_ready = false;
        for fd in hot {
            if self.pending(fd) != Some(0) {
                self.heat(fd);
                is_ready = true;
            }
        }
        is_ready
    }

    /// Called before a thread returns to its program: threads that sleep must be notified of members that it does not
    /// poll.
    pub(super) fn leave(&mut self) {
        if self.sleepers == 0 {
            return;
        }
        if self.cool() {
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
                Tagged::Waker => self.heat_woken(),
                Tagged::Door(fd) => {
                    if self.consume_rung(fd) {
                        self.missed.push(fd);
                    }
                    self.heat(fd);
                }
                Tagged::Socket(fd) => {
                    self.record_kernel_event(fd, event.events);
                    self.heat(fd);
                }
            }
        }
        (kept, kept < found)
    }
}

/// Queries the kernel for the events of a socket.
pub(super) fn ask_kernel(fd: c_int, sock: &SockRef) -> u32 {
    let events =
        libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI | libc::POLLRDNORM | libc::POLLWRNORM;
    let mut entry = pollfd { fd, events, revents: 0 };
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one entry, and a time.
    unsafe { real::ppoll(&raw mut entry, 1, &raw const none, ptr::null()) };
    if entry.revents & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
        sock.peer_has_ended(fd);
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
