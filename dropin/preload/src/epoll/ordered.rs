//! Objects whose waits have capacity for few events: members are reported in the order of the kernel's list.
//!
//! The kernel lists the members that may be ready. A member that becomes ready joins the list at its end, and so does a
//! level-triggered one that was reported; a wait takes as many from its front as it has capacity for. Rings that are
//! polled do not show which of two became ready first, so a wait that leaves some of them out could report an effect
//! before its cause. A member of an object in this mode is never hot. One of two descriptors stands for it in the
//! kernel's list:
//!
//! 1. its doorbell, which the peer notifies while it sends: a member that is not ready is armed;
//! 2. its socket, if it is *queued*: EPOLL_CTL_MOD lists a socket that can be written. So a member is listed that was
//!    ready when it entered, or that is ready after it was reported; its doorbell is not armed then.
//!
//! A wait replaces these entries by the events of members that are ready, and drops the others. Level-triggered
//! members that one wait reports are listed again one behind the other, but those that did not move come first.

use std::ffi::c_int;
use std::ptr;

use libc::epoll_event;

use super::members::{State, Suppression};
use super::ready::{ALWAYS, IN, query_kernel};
use super::tags::Tagged;
use super::{EDGE, ONE_SHOT};
use crate::readiness;
use crate::sock::SockRef;

/// Number of members, and of events of a wait, from which on a wait with capacity for fewer events than members begins
/// this mode only after one has left events out.
const FEW_EVENTS: usize = 16;
/// Number of waits that were not full after which members are polled again.
const ORDERED_WAITS: u32 = 256;

/// Result of translating an entry of the kernel's list.
enum Entry {
    Event(epoll_event),
    /// It is not reported.
    Dropped,
}

impl State {
    /// Called when a wait for up to `capacity` events begins.
    pub(super) fn begin_wait(&mut self, capacity: usize) {
        self.capacity = capacity;
        if self.has_small_buffer() {
            self.ordered_waits = ORDERED_WAITS;
        }
    }

    /// Called when a wait in this mode ends with `found` events.
    pub(super) fn end_ordered_wait(&mut self, found: c_int) {
        if usize::try_from(found).is_ok_and(|found| found < self.capacity) {
            self.ordered_waits = self.ordered_waits.saturating_sub(1);
        }
        self.before_return();
    }

    /// Returns whether the last wait had capacity for few events, and fewer than there are members; also before the
    /// first wait.
    fn has_small_buffer(&self) -> bool {
        self.is_small_for(self.member_count)
    }

    /// Returns whether the last wait had capacity for few events, and fewer than that many members.
    fn is_small_for(&self, members: usize) -> bool {
        self.capacity < members.min(FEW_EVENTS)
    }

    /// Called before one more member is added: those that are ready come before it in the kernel's list.
    pub(super) fn before_addition(&mut self) {
        if !self.hot.is_empty() && self.is_small_for(self.member_count + 1) {
            self.order_hot();
        }
    }

    /// Returns whether members are reported in the order of the kernel's list.
    pub(super) fn is_ordered(&self) -> bool {
        self.ordered_waits > 0 || self.has_small_buffer()
    }

    /// Called when a wait has left out members that are ready: they are queued in the order of `hot`.
    pub(super) fn begin_order(&mut self) {
        self.ordered_waits = ORDERED_WAITS;
        self.order_hot();
    }

    /// Called when members are polled again.
    pub(super) fn end_order(&mut self) {
        for fd in 0..self.members.len() as c_int {
            if self.ring(fd).is_some_and(|ring| ring.is_queued) {
                self.set_queued(fd, false);
                self.set_hot(fd);
            }
        }
    }

    /// Makes all members cold; those that are ready are in the kernel's list afterwards.
    pub(super) fn order_hot(&mut self) {
        for fd in std::mem::take(&mut self.hot) {
            if let Some(ring) = self.ring(fd) {
                ring.is_hot = false;
            }
            self.arm_or_queue(fd);
        }
    }

    /// Queues a member if it is ready; otherwise it is armed.
    pub(super) fn arm_or_queue(&mut self, fd: c_int) {
        if self.ring(fd).is_none_or(|ring| ring.suppression != Suppression::None || ring.is_queued) {
            return;
        }
        let mut ready = self.pending(fd);
        if ready == Some(0) {
            self.arm_in_order(fd);
            // A peer that sends later notifies.
            ready = self.pending(fd);
        }
        match ready {
            None => self.leave_ring(fd),
            Some(0) => {}
            Some(_) => self.queue(fd),
        }
    }

    /// Arms a member, for bytes only if the program waits for them: the doorbell must not be listed without.
    fn arm_in_order(&mut self, fd: c_int) {
        self.arm(fd);
        if let Some(member) = self.member(fd)
            && member.events & IN == 0
            && let Some(ring) = &mut member.ring
            && readiness::withdraw(&ring.sock)
        {
            ring.awaits_doorbell = false;
        }
    }

    /// Puts a member at the end of the kernel's list, unless its doorbell is there.
    fn queue(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd) else { return };
        if ring.awaits_doorbell && !readiness::withdraw(&ring.sock) {
            return;
        }
        ring.awaits_doorbell = false;
        self.list_socket(fd);
        self.set_queued(fd, true);
    }

    fn set_queued(&mut self, fd: c_int, is_queued: bool) {
        let Some(ring) = self.ring(fd) else { return };
        let was_queued = std::mem::replace(&mut ring.is_queued, is_queued);
        self.queued = self.queued - usize::from(was_queued) + usize::from(is_queued);
    }

    /// Translates the first `found` entries that the kernel reported to events in `into`. Returns the number of these,
    /// and whether members that have returned to TCP are to be reported by the kernel.
    pub(super) fn translate_in_order(&mut self, found: usize, into: &mut [epoll_event]) -> (usize, bool) {
        let ring_member_count = self.ring_member_count;
        self.ordered_calls += 1;
        self.first_call = self.ordered_calls;
        let mut kept = 0;
        for at in 0..found {
            if let Entry::Event(event) = self.report_next(self.reported[at]) {
                into[kept] = event;
                kept += 1;
            }
        }
        (kept, self.ring_member_count < ring_member_count)
    }

    /// Reports more members after `kept` ones: entries that were dropped have used capacity, or members have returned
    /// to TCP. Returns the number of all.
    pub(super) fn fill_in_order(&mut self, epfd: c_int, into: &mut [epoll_event], mut kept: usize) -> usize {
        // A member that has returned to TCP may stand behind all that this wait has reported.
        let mut listed_before = self.member_count;
        while listed_before > 0 && kept < into.len() {
            let (found, is_full) =
                self.reported.query(epfd, into.len() - kept, self.member_count, ptr::null());
            let found = found.max(0) as usize;
            let (before, ring_member_count) = (kept, self.ring_member_count);
            self.ordered_calls += 1;
            for at in 0..found {
                let Entry::Event(event) = self.report_next(self.reported[at]) else { continue };
                // The list may have reached a member that was listed again after this wait has reported it.
                if let Some(known) = into[..before].iter_mut().find(|known| known.u64 == event.u64) {
                    known.events |= event.events;
                } else {
                    into[kept] = event;
                    kept += 1;
                }
            }
            listed_before = match found {
                _ if self.ring_member_count < ring_member_count => self.member_count,
                _ if !is_full => 0,
                _ => listed_before.saturating_sub(found),
            };
        }
        kept
    }

    /// Takes the next entry of the kernel's list.
    fn report_next(&mut self, event: epoll_event) -> Entry {
        match Tagged::of(event.u64) {
            Tagged::Program => Entry::Event(event),
            Tagged::Waker => {
                self.take_woken();
                Entry::Dropped
            }
            Tagged::Doorbell(fd) => self.report_doorbell(fd),
            Tagged::Socket(fd) => self.report_listed(fd, event.events),
        }
    }

    /// Reports a member whose doorbell is the next entry.
    fn report_doorbell(&mut self, fd: c_int) -> Entry {
        if self.on_doorbell(fd) {
            self.missed.push(fd);
        }
        // A queued member is listed by its socket.
        match self.ring(fd).map(|ring| (ring.reported_call, ring.is_queued)) {
            None | Some((_, true)) => Entry::Dropped,
            Some((call, _)) if call >= self.first_call => {
                self.arm_or_queue(fd);
                Entry::Dropped
            }
            Some(_) => self.report_in_turn(fd),
        }
    }

    /// Reports a member whose socket is the next entry.
    fn report_listed(&mut self, fd: c_int, events: u32) -> Entry {
        self.record_kernel_event(fd, events);
        let Some(ring) = self.ring(fd) else { return Entry::Dropped };
        let call = ring.reported_call;
        if call < self.first_call {
            self.set_queued(fd, false);
            return self.report_in_turn(fd);
        }
        // In the call that reports a member, the kernel had reported this entry before the member was queued.
        if call < self.ordered_calls {
            self.set_queued(fd, false);
        }
        self.arm_or_queue(fd);
        Entry::Dropped
    }

    /// Reports queued members that the kernel does not list, because their sockets cannot be written. Called when the
    /// kernel's list was empty. Returns their number.
    pub(super) fn report_unlisted(&mut self, into: &mut [epoll_event]) -> usize {
        let mut found = 0;
        for fd in 0..self.members.len() as c_int {
            if found == into.len() || self.queued == 0 {
                break;
            }
            if self.ring(fd).is_some_and(|ring| ring.is_queued) {
                self.set_queued(fd, false);
                if let Entry::Event(event) = self.report_in_turn(fd) {
                    into[found] = event;
                    found += 1;
                }
            }
        }
        found
    }

    /// Reports a member that has returned to TCP, unless it is edge-triggered. The kernel lists a level-triggered
    /// member at the end, as if it had been reported, so it is reported now; the kernel reports an edge-triggered one.
    fn report_restored(&mut self, fd: c_int, sock: &SockRef) -> Entry {
        let requested = self
            .member(fd)
            .filter(|member| member.events & EDGE == 0)
            .map(|member| (member.events, member.data));
        let event = requested.and_then(|(wanted, data)| {
            let ready = query_kernel(fd, sock) & (wanted | ALWAYS);
            (ready != 0).then_some(epoll_event { events: ready, u64: data })
        });
        match self.ring(fd) {
            // It stays until the program requests it again: EPOLL_CTL_MOD cannot switch off errors and ends.
            Some(ring) if event.is_some() && requested.is_some_and(|(wanted, _)| wanted & ONE_SHOT != 0) => {
                ring.suppression = Suppression::OneShot;
            }
            _ => self.leave_ring(fd),
        }
        event.map_or(Entry::Dropped, Entry::Event)
    }

    /// Reports a member if it is ready; otherwise it is armed.
    fn report_in_turn(&mut self, fd: c_int) -> Entry {
        let mut is_armed = false;
        let (ready, arrived_before) = loop {
            let Some(ring) = self.ring(fd).filter(|ring| ring.suppression == Suppression::None) else {
                return Entry::Dropped;
            };
            let sock = ring.sock.clone();
            let arrived_before = self.arrived_bytes(fd);
            match self.pending(fd) {
                None => return self.report_restored(fd, &sock),
                Some(0) if is_armed => return Entry::Dropped,
                Some(0) => {
                    self.arm_in_order(fd);
                    is_armed = true;
                }
                Some(ready) => break (ready, arrived_before),
            }
        };
        let (call, event) = (self.ordered_calls, self.report(fd, ready, arrived_before));
        if let Some(ring) = self.ring(fd) {
            ring.reported_call = call;
        }
        if self.member(fd).is_some_and(|member| member.events & (EDGE | ONE_SHOT) == 0) {
            self.queue(fd);
        } else {
            self.arm_or_queue(fd);
        }
        event.map_or(Entry::Dropped, Entry::Event)
    }
}
