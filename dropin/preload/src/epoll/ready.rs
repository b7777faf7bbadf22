//! What members are reported with, which of them are looked at, and which have told their peers that somebody sleeps.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;

use farcall_stats::Why;
use libc::{epoll_event, pollfd};

use super::members::{DOOR_TAG, Off, State, is_tagged};
use super::{EDGE, ONE_SHOT};
use crate::sock::SockRef;
use crate::{own_fds, poll, real};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

impl State {
    /// What a member would be reported with; 0: nothing. `None`: it is over.
    pub(super) fn pending(&mut self, fd: c_int) -> Option<u32> {
        let Some(item) = self.item(fd) else { return Some(0) };
        let (wanted, Some(ring)) = (item.events, &mut item.ring) else { return Some(0) };
        if ring.off != Off::No {
            return Some(0);
        }
        if ring.sock.is_inherited() {
            ring.sock.demote(Why::Forked);
        }
        let mut asked = 0;
        if ring.asks_kernel {
            asked = ask_kernel(fd, &ring.sock);
            let says_more = poll::readiness(&ring.sock, libc::POLLOUT).ask & libc::POLLOUT != 0;
            ring.is_kernel_quiet = asked & !OUT == 0 && !says_more;
        }
        if ring.sock.is_over() {
            return None;
        }
        let interest = wanted & !(EDGE | ONE_SHOT) | ALWAYS;
        let shown = poll::readiness(&ring.sock, poll_events(interest));
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
        let has_room = ring.seen_full != ring.sock.full_count.load(SeqCst);
        let is_edge = (ready & IN != 0 && has_come) || (ready & OUT != 0 && has_room) || from_kernel != 0;
        if !is_edge {
            ring.asks_kernel = false;
        }
        Some(if is_edge { ready } else { 0 })
    }

    /// A member is reported.
    pub(super) fn report(&mut self, fd: c_int, ready: u32) -> Option<epoll_event> {
        let item = self.item(fd)?;
        let (wanted, data, ring) = (item.events, item.data, item.ring.as_mut()?);
        if wanted & EDGE != 0 {
            ring.asks_kernel = false;
            if ready & OUT != 0 {
                ring.seen_full = ring.sock.full_count.load(SeqCst);
            }
        }
        if wanted & ONE_SHOT != 0 {
            ring.off = Off::Reported;
        }
        Some(epoll_event { events: ready, u64: data })
    }

    /// Reports what is ready among hot members. How many, and whether the kernel has more than before.
    pub(super) fn scan(&mut self, into: &mut [epoll_event]) -> (usize, bool) {
        let (mut found, mut has_changed, mut at) = (0, false, 0);
        while at < self.hot.len() && found < into.len() {
            let fd = self.hot[at];
            // Counted before the look, so that what comes later is another edge.
            let counted = self.ring(fd).and_then(|ring| Some(ring.sock.link()?.inn.sent_bytes()));
            match self.pending(fd) {
                None => {
                    self.leave_ring(fd);
                    has_changed = true;
                    continue;
                }
                Some(0) => {}
                Some(ready) => {
                    if let Some(event) = self.report(fd, ready) {
                        into[found] = event;
                        found += 1;
                    }
                    if let (Some(ring), Some(counted)) = (self.ring(fd), counted) {
                        ring.seen_bytes = counted;
                    }
                }
            }
            at += 1;
        }
        if found == into.len() && at < self.hot.len() {
            self.hot.rotate_left(at);
        }
        (found, has_changed)
    }

    /// Makes all members cold; whether one is ready all the same.
    pub(super) fn cool(&mut self) -> bool {
        let hot = std::mem::take(&mut self.hot);
        for fd in &hot {
            if let Some(ring) = self.ring(*fd) {
                ring.is_hot = false;
                if !ring.is_armed && ring.off == Off::No {
                    ring.is_armed = true;
                    poll::arm(&ring.sock);
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

    /// Before a thread returns to its program: those that sleep must hear of what it does not look at.
    pub(super) fn leave(&mut self) {
        if self.sleepers == 0 {
            return;
        }
        if self.cool() {
            for fd in std::mem::take(&mut self.hot) {
                let Some(ring) = self.ring(fd) else { continue };
                ring.is_hot = false;
                ring.is_armed = true;
                poll::arm(&ring.sock);
                if let Some(link) = ring.sock.link() {
                    own_fds::ring(link.door);
                }
            }
        }
    }

    /// Takes our tags out of what the kernel reported; how many events are the program's, and whether there were others.
    pub(super) fn translate(&mut self, events: &mut [epoll_event]) -> (usize, bool) {
        let mut kept = 0;
        for at in 0..events.len() {
            let event = events[at];
            if !is_tagged(event.u64) {
                events[kept] = event;
                kept += 1;
                continue;
            }
            let fd = (event.u64 & (DOOR_TAG - 1)) as c_int;
            if let Some(ring) = self.ring(fd)
                && event.u64 & DOOR_TAG == 0
            {
                (ring.asks_kernel, ring.is_kernel_quiet) = (true, false);
            }
            self.heat(fd);
        }
        let has_tags = kept < events.len();
        // The program may look at them.
        events[kept..].fill(epoll_event { events: 0, u64: 0 });
        (kept, has_tags)
    }
}

/// Asks the kernel about a socket.
fn ask_kernel(fd: c_int, sock: &SockRef) -> u32 {
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

/// poll's and epoll's numbers are the same for what both have.
fn poll_events(events: u32) -> i16 {
    (events & 0x3FFF) as i16
}

fn epoll_events(events: i16) -> u32 {
    events as u16 as u32
}
