//! Members of an epoll object: requested events, and the state of the kernel's list and of the rings.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use farcall_stats::PathReason;
use libc::epoll_event;

use super::reported::Reported;
use super::tags::Tagged;
use super::{EDGE, MEMBERSHIPS, ONE_SHOT};
use crate::doorbell::{self, Waker};
use crate::sock::{SockRef, Stage};
use crate::{libc_next, readiness, sock, tcp};

/// Events requested of the kernel for the socket of a member that uses rings.
const SOCKET_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | EDGE;
/// As [`SOCKET_EVENTS`], and writability, which a socket almost always has. Only with this does the kernel list a
/// socket that has no other event.
const SOCKET_EVENTS_AND_WRITABLE: u32 = SOCKET_EVENTS | libc::EPOLLOUT as u32;
const DOORBELL_EVENTS: u32 = libc::EPOLLIN as u32 | EDGE;
/// Number of wake-ups by a doorbell after which its bytes are consumed: the socket has space for a few hundred.
const WAKES_PER_DRAIN: u32 = 16;

/// One member.
pub(super) struct Member {
    pub(super) events: u32,
    pub(super) data: u64,
    /// State of a member whose connection uses rings; `None` for all others.
    pub(super) ring: Option<RingMember>,
}

impl Member {
    pub(super) fn is_found(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.found_events != 0)
    }
}

pub(super) struct RingMember {
    pub(super) sock: SockRef,
    pub(super) is_hot: bool,
    pub(super) is_armed: bool,
    /// Reason why it is not reported.
    pub(super) suppression: Suppression,
    /// `true` if the kernel must be queried.
    pub(super) must_query: bool,
    /// `true` if the kernel had no event at the last query, and has not reported the socket since.
    pub(super) is_kernel_quiet: bool,
    /// Number of arrived bytes that reports have announced.
    pub(super) seen_bytes: u64,
    pub(super) seen_full: u32,
    /// Events found by a scan and not reported yet; 0: none.
    pub(super) found_events: u32,
    /// Number of bytes that had arrived before the check that found these events.
    pub(super) arrived_before: u64,
    /// `true` if the kernel also reports that its socket can be written.
    reports_writable: bool,
    /// `true` if its peer was notified that a thread sleeps, since the kernel reported the doorbell last.
    pub(super) awaits_doorbell: bool,
    /// `true` if its socket stands for it in the kernel's list.
    pub(super) is_queued: bool,
    /// [`State::ordered_calls`] when it was reported last.
    pub(super) reported_call: u64,
}

/// Reason why a member is not reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Suppression {
    /// It is reported.
    None,
    /// It was reported once (EPOLLONESHOT).
    OneShot,
    /// The program removed it. The kernel still has it, because many programs add it again at once.
    Removed,
}

#[derive(Default)]
pub(super) struct State {
    /// Its descriptors in this process.
    pub(super) fds: Vec<c_int>,
    pub(super) members: Vec<Option<Box<Member>>>,
    /// Number of members.
    pub(super) member_count: usize,
    /// Number of members that use rings.
    pub(super) ring_member_count: usize,
    pub(super) hot: Vec<c_int>,
    /// Threads that sleep in the kernel.
    pub(super) sleepers: u32,
    /// Wakes one of the threads that sleep, which checks `woken`.
    waker: Option<Waker>,
    /// Members that a thread which does not sleep passes to one that does.
    woken: Vec<c_int>,
    /// Members whose doorbells' bytes this object has consumed, and that are in other objects, too.
    pub(super) missed: Vec<c_int>,
    /// `true` if another object waits for this one: then the kernel must have all events.
    pub(super) is_nested: bool,
    /// Events that the kernel has reported to this library.
    pub(super) reported: Reported,
    pub(super) kernel_polled_ns: u64,
    /// Number of waits that returned events since the kernel was polled.
    pub(super) unpolled_waits: u32,
    /// Capacity of the last wait, in events.
    pub(super) capacity: usize,
    /// Number of waits during which members are reported in the order of the kernel's list.
    pub(super) ordered_waits: u32,
    /// Number of calls whose entries were reported in order.
    pub(super) ordered_calls: u64,
    /// Value of `ordered_calls` in the first call of the present wait.
    pub(super) first_call: u64,
    /// Number of members that are queued.
    pub(super) queued: usize,
}

impl State {
    fn epfd(&self) -> c_int {
        self.fds.first().copied().unwrap_or(-1)
    }

    pub(super) fn member(&mut self, fd: c_int) -> Option<&mut Member> {
        self.members.get_mut(fd as usize)?.as_deref_mut()
    }

    pub(super) fn ring(&mut self, fd: c_int) -> Option<&mut RingMember> {
        self.member(fd)?.ring.as_mut()
    }

    /// Executes epoll_ctl for a member that uses rings. Returns `None` if the kernel must execute it.
    pub(super) fn control_ring(
        &mut self,
        operation: c_int,
        fd: c_int,
        requested: Option<(u32, u64)>,
    ) -> Option<Result<(), c_int>> {
        const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
        let is_removed = self.ring(fd)?.suppression == Suppression::Removed;
        let is_ordered = self.is_ordered();
        let is_exclusive = self.member(fd)?.events & EXCLUSIVE != 0;
        match (operation, requested) {
            (libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD, _) if is_removed => return Some(Err(libc::ENOENT)),
            // The member must not keep its position in the kernel's list.
            (libc::EPOLL_CTL_DEL, _) if is_ordered => self.remove(fd),
            (libc::EPOLL_CTL_DEL, _) => self.suppress(fd),
            (libc::EPOLL_CTL_ADD, Some((events, data)))
                if is_removed && !is_ordered && events & EXCLUSIVE == 0 =>
            {
                self.change(fd, events, data);
            }
            (libc::EPOLL_CTL_ADD, _) if is_removed => {
                self.remove(fd);
                return None;
            }
            (libc::EPOLL_CTL_MOD, Some(_)) if is_exclusive => return Some(Err(libc::EINVAL)),
            (libc::EPOLL_CTL_MOD, Some((events, data))) if events & EXCLUSIVE == 0 => {
                self.change(fd, events, data)
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Executes EPOLL_CTL_DEL.
    fn suppress(&mut self, fd: c_int) {
        self.hot.retain(|hot| *hot != fd);
        let Some(ring) = self.ring(fd) else { return };
        (ring.suppression, ring.is_hot) = (Suppression::Removed, false);
        if ring.is_armed {
            ring.is_armed = false;
            readiness::disarm(&ring.sock);
        }
    }

    /// Records a member that was added to the kernel's object.
    pub(super) fn record(&mut self, fd: c_int, events: u32, data: u64) {
        if self.members.len() <= fd as usize {
            self.members.resize_with(fd as usize + 1, || None);
        }
        match self.member(fd) {
            Some(member) => (member.events, member.data) = (events, data),
            None => {
                self.members[fd as usize] = Some(Box::new(Member { events, data, ring: None }));
                self.member_count += 1;
                MEMBERSHIPS[fd as usize].fetch_add(1, Relaxed);
            }
        }
        if !self.hot.is_empty() && self.is_ordered() {
            // With this member, waits have capacity for fewer events than there are members.
            self.order_hot();
        }
        self.enter_ring(fd);
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, fd: c_int) {
        if self.member(fd).is_none() {
            return;
        }
        if self.ring(fd).is_some() {
            self.drop_ring(fd);
            self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.members[fd as usize] = None;
        self.member_count -= 1;
        MEMBERSHIPS[fd as usize].fetch_sub(1, Relaxed);
    }

    fn kernel(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: the event is valid.
        unsafe { libc_next::epoll_ctl(self.epfd(), operation, fd, &raw mut event) == 0 }
    }

    /// Watches the ring of a member from now on, if its connection has moved to shared memory.
    pub(super) fn enter_ring(&mut self, fd: c_int) {
        let Some(sock) = sock::get(fd).filter(|sock| sock.stage() == Stage::Paired && !sock.has_returned())
        else {
            return;
        };
        let (is_nested, Some(link)) = (self.is_nested, sock.link()) else { return };
        if self.member(fd).is_none_or(|member| member.ring.is_some()) {
            return;
        }
        if is_nested {
            return sock.demote(PathReason::NestedEpoll);
        }
        if MEMBERSHIPS[fd as usize].load(Relaxed) == 1 {
            // Unread notifications would list the doorbell.
            drain(&sock);
        }
        let is_suppressed = self.is_suppressed_in_kernel(fd);
        let reports_writable =
            self.member(fd).is_some_and(|member| member.events & libc::EPOLLOUT as u32 != 0);
        let events = if reports_writable { SOCKET_EVENTS_AND_WRITABLE } else { SOCKET_EVENTS };
        let changed = self.kernel(libc::EPOLL_CTL_MOD, fd, events, Tagged::Socket(fd).data())
            // An exclusive member cannot be changed.
            || (self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0)
                && self.kernel(libc::EPOLL_CTL_ADD, fd, events, Tagged::Socket(fd).data()));
        if !changed
            || !self.kernel(
                libc::EPOLL_CTL_ADD,
                link.doorbell.fd(),
                DOORBELL_EVENTS,
                Tagged::Doorbell(fd).data(),
            )
        {
            sock.demote(PathReason::NoResources);
            self.restore(fd, is_suppressed);
            return;
        }
        let ring = RingMember {
            sock: sock.clone(),
            is_hot: false,
            is_armed: false,
            suppression: if is_suppressed { Suppression::OneShot } else { Suppression::None },
            must_query: true,
            is_kernel_quiet: false,
            seen_bytes: 0,
            seen_full: u32::MAX,
            found_events: 0,
            arrived_before: 0,
            reports_writable,
            // Another wait may have notified it, or one before this member was removed.
            awaits_doorbell: link.incoming.is_data_armed(),
            is_queued: false,
            reported_call: 0,
        };
        if let Some(member) = self.member(fd) {
            member.ring = Some(ring);
        }
        self.ring_member_count += 1;
        self.poll_or_wake(fd);
    }

    /// Returns whether a member was reported once (EPOLLONESHOT) and not re-armed, according to the kernel's
    /// description of the object.
    fn is_suppressed_in_kernel(&mut self, fd: c_int) -> bool {
        if self.member(fd).is_none_or(|member| member.events & ONE_SHOT == 0) {
            return false;
        }
        let description =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.epfd())).unwrap_or_default();
        // "tfd:        5 events: 4000001b data: ..."
        let events = description.lines().find_map(|line| {
            let mut words = line.strip_prefix("tfd:")?.split_whitespace();
            let is_it = words.next()?.parse() == Ok(fd) && words.next()? == "events:";
            is_it.then(|| u32::from_str_radix(words.next()?, 16).ok())?
        });
        events.is_some_and(|events| events & !(EDGE | ONE_SHOT | libc::EPOLLWAKEUP as u32) == 0)
    }

    /// Registers the events that the program requested at the kernel; for a disabled member only its membership.
    fn restore(&mut self, fd: c_int, is_suppressed: bool) {
        let Some(&mut Member { events, data, .. }) = self.member(fd) else { return };
        let kept = if is_suppressed { ONE_SHOT | EDGE } else { !(libc::EPOLLEXCLUSIVE as u32) };
        self.kernel(libc::EPOLL_CTL_MOD, fd, events & kept, data);
    }

    /// Returns a member to the kernel, which has all later bytes of its connection.
    pub(super) fn leave_ring(&mut self, fd: c_int) {
        let suppression = self.ring(fd).map_or(Suppression::None, |ring| ring.suppression);
        if suppression == Suppression::Removed {
            return self.remove(fd);
        }
        self.drop_ring(fd);
        self.restore(fd, suppression == Suppression::OneShot);
    }

    /// Removes the state of its rings.
    fn drop_ring(&mut self, fd: c_int) {
        let Some(ring) = self.member(fd).and_then(|member| member.ring.take()) else { return };
        self.ring_member_count -= 1;
        self.queued -= usize::from(ring.is_queued);
        self.hot.retain(|hot| *hot != fd);
        if let Some(link) = ring.sock.link() {
            self.kernel(libc::EPOLL_CTL_DEL, link.doorbell.fd(), 0, 0);
        }
        if ring.is_armed {
            readiness::disarm(&ring.sock);
        }
    }

    /// Executes EPOLL_CTL_MOD.
    fn change(&mut self, fd: c_int, events: u32, data: u64) {
        let is_ordered = self.is_ordered();
        let Some(member) = self.member(fd) else { return };
        let waits_for_nothing = member.events & !(EDGE | ONE_SHOT) == 0;
        let is_unwanted = member.ring.as_ref().is_some_and(|ring| {
            // An end lists a member that waits for nothing, too.
            ring.suppression != Suppression::None || waits_for_nothing && !tcp::is_ended(fd)
        });
        if is_ordered && is_unwanted {
            self.unlist(fd);
        }
        let Some(member) = self.member(fd) else { return };
        (member.events, member.data) = (events, data);
        let mut must_report_writable = false;
        if let Some(ring) = &mut member.ring {
            (ring.suppression, ring.must_query) = (Suppression::None, !ring.is_kernel_quiet);
            (ring.seen_bytes, ring.seen_full, ring.found_events) = (0, u32::MAX, 0);
            must_report_writable = events & libc::EPOLLOUT as u32 != 0 && !ring.reports_writable;
        }
        if !is_ordered {
            if must_report_writable {
                self.list_socket(fd);
            }
            return self.poll_or_wake(fd);
        }
        self.poll_or_wake(fd);
        // A member that is ready is in the list already.
        if must_report_writable && self.ring(fd).is_some() && self.pending(fd) == Some(0) {
            self.list_socket(fd);
        }
    }

    /// Removes a member that waited for no event from the kernel's list: a position from that time does not count.
    fn unlist(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd).filter(|ring| !ring.is_queued) else { return };
        let sock = ring.sock.clone();
        // If the kernel reported that it can be written, it would list it at once.
        ring.reports_writable = false;
        self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        self.kernel(libc::EPOLL_CTL_ADD, fd, SOCKET_EVENTS, Tagged::Socket(fd).data());
        let Some(link) = sock.link() else { return };
        let doorbell = link.doorbell.fd();
        // Unread notifications would list the doorbell. A peer notifies only while the ring has not ended.
        let is_silent = MEMBERSHIPS[fd as usize].load(Relaxed) == 1 && drain(&sock);
        if is_silent || !link.doorbell.is_open() {
            self.kernel(libc::EPOLL_CTL_DEL, doorbell, 0, 0);
        }
        if is_silent && link.doorbell.is_open() {
            self.kernel(libc::EPOLL_CTL_ADD, doorbell, DOORBELL_EVENTS, Tagged::Doorbell(fd).data());
        }
        // A doorbell that was reported is not in the list any more.
        let is_listed = !is_silent && link.doorbell.is_open();
        if let Some(ring) = self.ring(fd)
            && !is_listed
        {
            ring.awaits_doorbell = link.incoming.is_data_armed();
        }
    }

    /// Puts the socket of a member at the end of the kernel's list, if it can be written and is not there.
    pub(super) fn list_socket(&mut self, fd: c_int) {
        self.kernel(libc::EPOLL_CTL_MOD, fd, SOCKET_EVENTS_AND_WRITABLE, Tagged::Socket(fd).data());
        if let Some(ring) = self.ring(fd) {
            ring.reports_writable = true;
        }
    }

    /// Makes a member hot, or passes it to a thread that sleeps.
    fn poll_or_wake(&mut self, fd: c_int) {
        if self.is_ordered() {
            return self.arm_or_queue(fd);
        }
        let has_sleepers = self.sleepers > 0;
        let Some(ring) = self.ring(fd) else { return };
        if has_sleepers {
            if !ring.is_hot {
                self.arm(fd);
            }
            self.wake_sleeper(fd);
        } else {
            self.set_hot(fd);
        }
    }

    /// Notifies a member's peer that a thread sleeps, also if it was notified before.
    pub(super) fn arm(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd) else { return };
        ring.awaits_doorbell = true;
        if ring.is_armed {
            readiness::rearm(&ring.sock);
        } else {
            ring.is_armed = true;
            readiness::arm(&ring.sock);
        }
    }

    /// Has a member polled by waits from now on; in an object that is ordered, arms or queues it.
    pub(super) fn set_hot(&mut self, fd: c_int) {
        if self.is_ordered() {
            return self.arm_or_queue(fd);
        }
        let Some(ring) = self.ring(fd) else { return };
        if ring.is_armed {
            ring.is_armed = false;
            readiness::disarm(&ring.sock);
        }
        if !ring.is_hot && ring.suppression == Suppression::None {
            ring.is_hot = true;
            self.hot.push(fd);
        }
    }

    /// Passes a member to a thread that sleeps.
    pub(super) fn wake_sleeper(&mut self, fd: c_int) {
        if !self.woken.contains(&fd) {
            self.woken.push(fd);
        }
        let woke = self.own_waker().is_some_and(doorbell::wake);
        if !woke && let Some(ring) = self.ring(fd) {
            // The end of the rings wakes the threads by their doorbell.
            ring.sock.demote(PathReason::NoResources);
        }
    }

    fn own_waker(&mut self) -> Option<c_int> {
        if self.waker.as_ref().is_none_or(|waker| !waker.is_usable()) {
            let waker = Waker::new()?;
            let is_added =
                self.kernel(libc::EPOLL_CTL_ADD, waker.fd(), DOORBELL_EVENTS, Tagged::Waker.data());
            self.waker = is_added.then_some(waker);
        }
        self.waker.as_ref().map(Waker::fd)
    }

    /// Called when the kernel reported the waker.
    pub(super) fn take_woken(&mut self) {
        for fd in std::mem::take(&mut self.woken) {
            self.set_hot(fd);
        }
    }

    /// Called when the kernel reported a member's socket.
    pub(super) fn record_kernel_event(&mut self, fd: c_int, events: u32) {
        let Some(ring) = self.ring(fd) else { return };
        // A queued socket is reported because it can be written, which concerns only a ring that is not in use.
        let is_own = ring.is_queued
            && events & !(libc::EPOLLOUT as u32) == 0
            && readiness::readiness(fd, &ring.sock, libc::POLLOUT).kernel_events & libc::POLLOUT == 0;
        if !is_own {
            (ring.must_query, ring.is_kernel_quiet) = (true, false);
        }
    }

    /// Called when the kernel reported a member's doorbell. Edges are reported whether its bytes are consumed or not;
    /// they are consumed so that the doorbell can take more. Returns whether they were, and other objects may have
    /// missed them.
    pub(super) fn on_doorbell(&mut self, fd: c_int) -> bool {
        let Some(ring) = self.ring(fd) else { return false };
        ring.awaits_doorbell = false;
        let is_due =
            ring.sock.link().is_some_and(|link| link.doorbell.count_wake().is_multiple_of(WAKES_PER_DRAIN));
        is_due && drain(&ring.sock) && MEMBERSHIPS[fd as usize].load(Relaxed) > 1
    }

    /// Called when another thread has consumed bytes of a member's doorbell of which this object may not have been
    /// notified.
    pub(super) fn recheck(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd).filter(|ring| ring.is_armed) else { return };
        ring.awaits_doorbell = false;
        if self.sleepers > 0 && !self.is_ordered() {
            self.wake_sleeper(fd);
        } else {
            self.set_hot(fd);
        }
    }
}

/// Consumes the bytes of a connection's doorbell, unless a thread polls it, which consumes them itself. Returns whether
/// they were consumed.
fn drain(sock: &SockRef) -> bool {
    let Some(link) = sock.link().filter(|_| !sock.waiters.has_leader()) else { return false };
    link.doorbell.drain();
    if sock.waiters.has_leader() {
        // A thread that has begun to poll in the meantime may have missed them.
        sock.demote(PathReason::NoResources);
    }
    true
}
