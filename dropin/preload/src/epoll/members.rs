//! Members of an epoll object: what the program asked for, and how the kernel and the rings are watched for it.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use farcall_stats::PathReason;
use libc::epoll_event;

use super::reported::Reported;
use super::tags::Tagged;
use super::{EDGE, MEMBERSHIPS, ONE_SHOT};
use crate::door::{self, Waker};
use crate::sock::{SockRef, Stage};
use crate::{readiness, real, sock, tcp};

/// Events of the kernel for a socket that goes through shared memory.
const SOCKET_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | EDGE;
/// As [`SOCKET_EVENTS`], and that it can be written, as it almost always can. Only with this does the kernel list a
/// socket that has no event.
const SOCKET_EVENTS_AND_ROOM: u32 = SOCKET_EVENTS | libc::EPOLLOUT as u32;
const DOOR_EVENTS: u32 = libc::EPOLLIN as u32 | EDGE;
/// Number of wake-ups by a doorbell after which its bytes are consumed: it takes a few hundred.
const WAKES_PER_SILENCE: u32 = 16;

/// One member.
pub(super) struct Item {
    pub(super) events: u32,
    pub(super) data: u64,
    /// A connection that has met, and whose end the kernel does not know yet.
    pub(super) ring: Option<RingItem>,
}

impl Item {
    pub(super) fn is_marked(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.marked != 0)
    }
}

pub(super) struct RingItem {
    pub(super) sock: SockRef,
    pub(super) is_hot: bool,
    pub(super) is_armed: bool,
    /// Not to be reported before the program says so.
    pub(super) off: Off,
    /// The kernel is to be asked.
    pub(super) asks_kernel: bool,
    /// `true` if the kernel had no event at the last query, and has not reported the socket since.
    pub(super) is_kernel_quiet: bool,
    pub(super) seen_bytes: u64,
    pub(super) seen_full: u32,
    /// Events found by a scan and not reported yet; 0: none.
    pub(super) marked: u32,
    /// Value that `seen_bytes` takes when it is reported.
    pub(super) counted_bytes: u64,
    /// Whether the kernel also reports that its socket can be written.
    hears_room: bool,
    /// `true` if its peer was notified that a thread sleeps, since the kernel reported the doorbell last.
    pub(super) awaits_door: bool,
    /// Whether its socket is in the kernel's list in its place.
    pub(super) is_queued: bool,
    /// [`State::ordered_calls`] when it was reported last.
    pub(super) reported_call: u64,
}

/// Why a member is not reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Off {
    /// It is.
    No,
    /// It was, once (EPOLLONESHOT).
    Reported,
    /// The program took it out; the kernel still has it, because many programs put it in again at once.
    Removed,
}

#[derive(Default)]
pub(super) struct State {
    /// Its descriptors in this process.
    pub(super) fds: Vec<c_int>,
    pub(super) items: Vec<Option<Box<Item>>>,
    /// Number of members.
    pub(super) members: usize,
    /// Number of members that go through shared memory.
    pub(super) ring_items: usize,
    pub(super) hot: Vec<c_int>,
    /// Threads that sleep in the kernel.
    pub(super) sleepers: u32,
    /// Wakes one of the threads that sleep, which checks `woken`.
    waker: Option<Waker>,
    /// Members that a thread which does not sleep passes to one that does.
    woken: Vec<c_int>,
    /// Members whose doorbells' bytes this object has consumed, and that are in other objects, too.
    pub(super) missed: Vec<c_int>,
    /// Another object waits for this one: the kernel must know everything.
    pub(super) is_nested: bool,
    /// Events that the kernel has reported to this library.
    pub(super) reported: Reported,
    pub(super) looked_ns: u64,
    /// Number of waits that returned events since the kernel was asked.
    pub(super) turns: u32,
    /// Room of the last wait, in events.
    pub(super) room: usize,
    /// Number of waits during which members are reported in the order of the kernel's list.
    pub(super) ordered_waits: u32,
    /// Number of calls whose entries were reported in order.
    pub(super) ordered_calls: u64,
    /// That of the first call of the present wait.
    pub(super) first_call: u64,
    /// Number of members that are queued.
    pub(super) queued: usize,
}

impl State {
    fn epfd(&self) -> c_int {
        self.fds.first().copied().unwrap_or(-1)
    }

    pub(super) fn item(&mut self, fd: c_int) -> Option<&mut Item> {
        self.items.get_mut(fd as usize)?.as_deref_mut()
    }

    pub(super) fn ring(&mut self, fd: c_int) -> Option<&mut RingItem> {
        self.item(fd)?.ring.as_mut()
    }

    /// Executes epoll_ctl for a member that goes through shared memory. Returns `None` if the kernel must execute it.
    pub(super) fn control_ring(
        &mut self,
        operation: c_int,
        fd: c_int,
        wish: Option<(u32, u64)>,
    ) -> Option<Result<(), c_int>> {
        const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
        let is_removed = self.ring(fd)?.off == Off::Removed;
        let is_ordered = self.is_ordered();
        let is_exclusive = self.item(fd)?.events & EXCLUSIVE != 0;
        match (operation, wish) {
            (libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD, _) if is_removed => return Some(Err(libc::ENOENT)),
            // The kernel's list must not keep its place.
            (libc::EPOLL_CTL_DEL, _) if is_ordered => self.remove(fd),
            (libc::EPOLL_CTL_DEL, _) => self.switch_off(fd),
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
    fn switch_off(&mut self, fd: c_int) {
        self.hot.retain(|hot| *hot != fd);
        let Some(ring) = self.ring(fd) else { return };
        (ring.off, ring.is_hot) = (Off::Removed, false);
        if ring.is_armed {
            ring.is_armed = false;
            readiness::disarm(&ring.sock);
        }
    }

    /// Records a member that was added to the kernel's object.
    pub(super) fn record(&mut self, fd: c_int, events: u32, data: u64) {
        if self.items.len() <= fd as usize {
            self.items.resize_with(fd as usize + 1, || None);
        }
        match self.item(fd) {
            Some(item) => (item.events, item.data) = (events, data),
            None => {
                self.items[fd as usize] = Some(Box::new(Item { events, data, ring: None }));
                self.members += 1;
                MEMBERSHIPS[fd as usize].fetch_add(1, Relaxed);
            }
        }
        if !self.hot.is_empty() && self.is_ordered() {
            // With this member the room of waits is little.
            self.order_hot();
        }
        self.enter_ring(fd);
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, fd: c_int) {
        if self.item(fd).is_none() {
            return;
        }
        if self.ring(fd).is_some() {
            self.drop_ring(fd);
            self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.items[fd as usize] = None;
        self.members -= 1;
        MEMBERSHIPS[fd as usize].fetch_sub(1, Relaxed);
    }

    fn kernel(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: the event is valid.
        unsafe { real::epoll_ctl(self.epfd(), operation, fd, &raw mut event) == 0 }
    }

    /// Watches the ring of a member from now on, if its connection has moved to shared memory.
    pub(super) fn enter_ring(&mut self, fd: c_int) {
        let Some(sock) = sock::get(fd).filter(|sock| sock.stage() == Stage::Met && !sock.is_over()) else {
            return;
        };
        let (is_nested, Some(link)) = (self.is_nested, sock.link()) else { return };
        if self.item(fd).is_none_or(|item| item.ring.is_some()) {
            return;
        }
        if is_nested {
            return sock.demote(PathReason::NestedEpoll);
        }
        if MEMBERSHIPS[fd as usize].load(Relaxed) == 1 {
            // Bytes that wait would list the doorbell.
            silence(&sock);
        }
        let is_off = self.is_off_in_kernel(fd);
        let hears_room = self.item(fd).is_some_and(|item| item.events & libc::EPOLLOUT as u32 != 0);
        let events = if hears_room { SOCKET_EVENTS_AND_ROOM } else { SOCKET_EVENTS };
        let changed = self.kernel(libc::EPOLL_CTL_MOD, fd, events, Tagged::Socket(fd).data())
            // An exclusive member cannot be changed.
            || (self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0)
                && self.kernel(libc::EPOLL_CTL_ADD, fd, events, Tagged::Socket(fd).data()));
        if !changed || !self.kernel(libc::EPOLL_CTL_ADD, link.door.fd(), DOOR_EVENTS, Tagged::Door(fd).data())
        {
            sock.demote(PathReason::NoResources);
            self.restore(fd, is_off);
            return;
        }
        let ring = RingItem {
            sock: sock.clone(),
            is_hot: false,
            is_armed: false,
            off: if is_off { Off::Reported } else { Off::No },
            asks_kernel: true,
            is_kernel_quiet: false,
            seen_bytes: 0,
            seen_full: u32::MAX,
            marked: 0,
            counted_bytes: 0,
            hears_room,
            // Another wait may have notified it, or one before this member was removed.
            awaits_door: link.inn.is_data_armed(),
            is_queued: false,
            reported_call: 0,
        };
        if let Some(item) = self.item(fd) {
            item.ring = Some(ring);
        }
        self.ring_items += 1;
        self.make_hot(fd);
    }

    /// Returns whether a member was reported once (EPOLLONESHOT) and not re-armed, according to the kernel's
    /// description of the object.
    fn is_off_in_kernel(&mut self, fd: c_int) -> bool {
        if self.item(fd).is_none_or(|item| item.events & ONE_SHOT == 0) {
            return false;
        }
        let shown = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.epfd())).unwrap_or_default();
        // "tfd:        5 events: 4000001b data: ..."
        let events = shown.lines().find_map(|line| {
            let mut words = line.strip_prefix("tfd:")?.split_whitespace();
            let is_it = words.next()?.parse() == Ok(fd) && words.next()? == "events:";
            is_it.then(|| u32::from_str_radix(words.next()?, 16).ok())?
        });
        events.is_some_and(|events| events & !(EDGE | ONE_SHOT | libc::EPOLLWAKEUP as u32) == 0)
    }

    /// Registers the events that the program requested at the kernel; for a disabled member only its membership.
    fn restore(&mut self, fd: c_int, is_off: bool) {
        let Some(&mut Item { events, data, .. }) = self.item(fd) else { return };
        let kept = if is_off { ONE_SHOT | EDGE } else { !(libc::EPOLLEXCLUSIVE as u32) };
        self.kernel(libc::EPOLL_CTL_MOD, fd, events & kept, data);
    }

    /// Returns a member to the kernel, which has all later bytes of its connection.
    pub(super) fn leave_ring(&mut self, fd: c_int) {
        let off = self.ring(fd).map_or(Off::No, |ring| ring.off);
        if off == Off::Removed {
            return self.remove(fd);
        }
        self.drop_ring(fd);
        self.restore(fd, off == Off::Reported);
    }

    /// Forgets what concerns shared memory.
    fn drop_ring(&mut self, fd: c_int) {
        let Some(ring) = self.item(fd).and_then(|item| item.ring.take()) else { return };
        self.ring_items -= 1;
        self.queued -= usize::from(ring.is_queued);
        self.hot.retain(|hot| *hot != fd);
        if let Some(link) = ring.sock.link() {
            self.kernel(libc::EPOLL_CTL_DEL, link.door.fd(), 0, 0);
        }
        if ring.is_armed {
            readiness::disarm(&ring.sock);
        }
    }

    /// Executes EPOLL_CTL_MOD.
    fn change(&mut self, fd: c_int, events: u32, data: u64) {
        let is_ordered = self.is_ordered();
        let Some(item) = self.item(fd) else { return };
        let waits_for_nothing = item.events & !(EDGE | ONE_SHOT) == 0;
        let is_unwanted = item.ring.as_ref().is_some_and(|ring| {
            // An end lists a member that waits for nothing, too.
            ring.off != Off::No || waits_for_nothing && !tcp::is_ended(fd)
        });
        if is_ordered && is_unwanted {
            self.unlist(fd);
        }
        let Some(item) = self.item(fd) else { return };
        (item.events, item.data) = (events, data);
        let mut must_hear_room = false;
        if let Some(ring) = &mut item.ring {
            (ring.off, ring.asks_kernel) = (Off::No, !ring.is_kernel_quiet);
            (ring.seen_bytes, ring.seen_full, ring.marked) = (0, u32::MAX, 0);
            must_hear_room = events & libc::EPOLLOUT as u32 != 0 && !ring.hears_room;
        }
        if !is_ordered {
            if must_hear_room {
                self.list_socket(fd);
            }
            return self.make_hot(fd);
        }
        self.make_hot(fd);
        // One that is ready has its place.
        if must_hear_room && self.ring(fd).is_some() && self.pending(fd) == Some(0) {
            self.list_socket(fd);
        }
    }

    /// Takes a member that waited for nothing out of the kernel's list: a place from that time is none.
    fn unlist(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd).filter(|ring| !ring.is_queued) else { return };
        let sock = ring.sock.clone();
        // With its room, the kernel would list it at once.
        ring.hears_room = false;
        self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        self.kernel(libc::EPOLL_CTL_ADD, fd, SOCKET_EVENTS, Tagged::Socket(fd).data());
        let Some(link) = sock.link() else { return };
        let door = link.door.fd();
        // Bytes that wait would list the doorbell, and a peer rings only one of a ring that has not ended.
        let is_silent = MEMBERSHIPS[fd as usize].load(Relaxed) == 1 && silence(&sock);
        if is_silent || !link.door.hears() {
            self.kernel(libc::EPOLL_CTL_DEL, door, 0, 0);
        }
        if is_silent && link.door.hears() {
            self.kernel(libc::EPOLL_CTL_ADD, door, DOOR_EVENTS, Tagged::Door(fd).data());
        }
        // A doorbell that has rung is not in the list any more.
        let is_listed = !is_silent && link.door.hears();
        if let Some(ring) = self.ring(fd)
            && !is_listed
        {
            ring.awaits_door = link.inn.is_data_armed();
        }
    }

    /// Puts the socket of a member at the end of the kernel's list, if it can be written and is not there.
    pub(super) fn list_socket(&mut self, fd: c_int) {
        self.kernel(libc::EPOLL_CTL_MOD, fd, SOCKET_EVENTS_AND_ROOM, Tagged::Socket(fd).data());
        if let Some(ring) = self.ring(fd) {
            ring.hears_room = true;
        }
    }

    /// Has a member polled: by this thread, or by one that sleeps.
    fn make_hot(&mut self, fd: c_int) {
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
            self.heat(fd);
        }
    }

    /// Notifies a member's peer that a thread sleeps, also if it was notified before.
    pub(super) fn arm(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd) else { return };
        ring.awaits_door = true;
        if ring.is_armed {
            readiness::rearm(&ring.sock);
        } else {
            ring.is_armed = true;
            readiness::arm(&ring.sock);
        }
    }

    /// Has a member polled by waits from now on; in an object that is ordered, arms or queues it.
    pub(super) fn heat(&mut self, fd: c_int) {
        if self.is_ordered() {
            return self.arm_or_queue(fd);
        }
        let Some(ring) = self.ring(fd) else { return };
        if ring.is_armed {
            ring.is_armed = false;
            readiness::disarm(&ring.sock);
        }
        if !ring.is_hot && ring.off == Off::No {
            ring.is_hot = true;
            self.hot.push(fd);
        }
    }

    /// Passes a member to a thread that sleeps.
    pub(super) fn wake_sleeper(&mut self, fd: c_int) {
        if !self.woken.contains(&fd) {
            self.woken.push(fd);
        }
        let woke = self.own_waker().is_some_and(door::wake);
        if !woke && let Some(ring) = self.ring(fd) {
            // Its doorbell wakes them, for the last time.
            ring.sock.demote(PathReason::NoResources);
        }
    }

    fn own_waker(&mut self) -> Option<c_int> {
        if self.waker.as_ref().is_none_or(|waker| !waker.is_usable()) {
            let waker = Waker::new()?;
            let is_added = self.kernel(libc::EPOLL_CTL_ADD, waker.fd(), DOOR_EVENTS, Tagged::Waker.data());
            self.waker = is_added.then_some(waker);
        }
        self.waker.as_ref().map(Waker::fd)
    }

    /// Called when the kernel reported the waker.
    pub(super) fn heat_woken(&mut self) {
        for fd in std::mem::take(&mut self.woken) {
            self.heat(fd);
        }
    }

    /// Called when the kernel reported a member's socket.
    pub(super) fn record_kernel_event(&mut self, fd: c_int, events: u32) {
        let Some(ring) = self.ring(fd) else { return };
        // A queued socket is reported because it can be written, which concerns only a ring that is not in use.
        let is_own = ring.is_queued
            && events & !(libc::EPOLLOUT as u32) == 0
            && readiness::readiness(fd, &ring.sock, libc::POLLOUT).ask & libc::POLLOUT == 0;
        if !is_own {
            (ring.asks_kernel, ring.is_kernel_quiet) = (true, false);
        }
    }

    /// Called when the kernel reported a member's doorbell. Edges are reported whether its bytes are consumed or not;
    /// they are consumed so that the doorbell can take more. Returns whether they were, and other objects may have
    /// missed them.
    pub(super) fn consume_rung(&mut self, fd: c_int) -> bool {
        let Some(ring) = self.ring(fd) else { return false };
        ring.awaits_door = false;
        let is_due =
            ring.sock.link().is_some_and(|link| link.door.count_wake().is_multiple_of(WAKES_PER_SILENCE));
        is_due && silence(&ring.sock) && MEMBERSHIPS[fd as usize].load(Relaxed) > 1
    }

    /// Called when another thread has consumed bytes of a member's doorbell of which this object may not have been
    /// notified.
    pub(super) fn check_again(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd).filter(|ring| ring.is_armed) else { return };
        ring.awaits_door = false;
        if self.sleepers > 0 && !self.is_ordered() {
            self.wake_sleeper(fd);
        } else {
            self.heat(fd);
        }
    }
}

/// Consumes the bytes of a connection's doorbell, unless a thread polls it, which does so itself. Returns whether they
/// were.
fn silence(sock: &SockRef) -> bool {
    let Some(link) = sock.link().filter(|_| !sock.sleeping.has_leader()) else { return false };
    link.door.silence();
    if sock.sleeping.has_leader() {
        // One that has begun to in the meantime may have missed them.
        sock.demote(PathReason::NoResources);
    }
    true
}
