//! Members of an epoll object: what the program asked for, and how the kernel and the rings are watched for it.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use farcall_stats::Why;
use libc::epoll_event;

use super::{EDGE, MEMBERSHIPS, ONE_SHOT};
use crate::sock::{SockRef, Stage};
use crate::{clock, own_fds, poll, real, sock};

/// What the kernel reports of a socket that goes through shared memory.
const SOCKET_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | EDGE;
const DOOR_EVENTS: u32 = libc::EPOLLIN as u32 | EDGE;
/// In a tag: it is of a doorbell.
pub(super) const DOOR_TAG: u64 = 1 << 31;

/// One member.
pub(super) struct Item {
    pub(super) events: u32,
    pub(super) data: u64,
    /// A connection that has met, and whose end the kernel does not know yet.
    pub(super) ring: Option<RingItem>,
}

pub(super) struct RingItem {
    pub(super) sock: SockRef,
    pub(super) is_hot: bool,
    pub(super) is_armed: bool,
    /// Not to be reported before the program says so.
    pub(super) off: Off,
    /// The kernel is to be asked.
    pub(super) asks_kernel: bool,
    /// The kernel had nothing to tell when it was asked last, and has not reported the socket since.
    pub(super) is_kernel_quiet: bool,
    pub(super) seen_bytes: u64,
    pub(super) seen_full: u32,
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
    pub(super) ring_items: usize,
    pub(super) hot: Vec<c_int>,
    /// Threads that sleep in the kernel.
    pub(super) sleepers: u32,
    /// Another object waits for this one: the kernel must know everything.
    pub(super) is_nested: bool,
    pub(super) looked_ns: u64,
    pub(super) turns: u32,
}

/// The upper half of our tags: no pointer, no small number, and not the same in two processes.
pub(super) fn tag() -> u64 {
    static TAG: AtomicU64 = AtomicU64::new(0);
    let known = TAG.load(Relaxed);
    if known != 0 {
        return known;
    }
    let made =
        (0x4000_0000 | (clock::now_ns() ^ u64::from(std::process::id()).rotate_left(16)) & 0x3FFF_FFFF) << 32;
    TAG.compare_exchange(0, made, Relaxed, Relaxed).map_or_else(|other| other, |_| made)
}

pub(super) fn is_tagged(data: u64) -> bool {
    data & !0xFFFF_FFFF == tag()
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

    /// What epoll_ctl comes to for a member that goes through shared memory; `None`: the kernel is to be asked.
    pub(super) fn control_ring(
        &mut self,
        operation: c_int,
        fd: c_int,
        wish: Option<(u32, u64)>,
    ) -> Option<Result<(), c_int>> {
        const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
        let is_removed = self.ring(fd)?.off == Off::Removed;
        match (operation, wish) {
            (libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD, _) if is_removed => return Some(Err(libc::ENOENT)),
            (libc::EPOLL_CTL_DEL, _) => self.switch_off(fd),
            (libc::EPOLL_CTL_ADD, Some((events, data))) if is_removed && events & EXCLUSIVE == 0 => {
                self.change(fd, events, data);
            }
            (libc::EPOLL_CTL_ADD, _) if is_removed => {
                self.remove(fd);
                return None;
            }
            (libc::EPOLL_CTL_MOD, Some((events, data))) if events & EXCLUSIVE == 0 => {
                self.change(fd, events, data)
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// EPOLL_CTL_DEL.
    fn switch_off(&mut self, fd: c_int) {
        self.hot.retain(|hot| *hot != fd);
        let Some(ring) = self.ring(fd) else { return };
        (ring.off, ring.is_hot) = (Off::Removed, false);
        if ring.is_armed {
            ring.is_armed = false;
            poll::disarm(&ring.sock);
        }
    }

    /// The kernel has this member.
    pub(super) fn record(&mut self, fd: c_int, events: u32, data: u64) {
        if self.items.len() <= fd as usize {
            self.items.resize_with(fd as usize + 1, || None);
        }
        match self.item(fd) {
            Some(item) => (item.events, item.data) = (events, data),
            None => {
                self.items[fd as usize] = Some(Box::new(Item { events, data, ring: None }));
                MEMBERSHIPS[fd as usize].fetch_add(1, Relaxed);
            }
        }
        self.enter_ring(fd);
    }

    /// No member any more.
    pub(super) fn remove(&mut self, fd: c_int) {
        if self.item(fd).is_none() {
            return;
        }
        if self.ring(fd).is_some() {
            self.drop_ring(fd);
            self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.items[fd as usize] = None;
        MEMBERSHIPS[fd as usize].fetch_sub(1, Relaxed);
    }

    fn kernel(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: the event is valid.
        unsafe { real::epoll_ctl(self.epfd(), operation, fd, &raw mut event) == 0 }
    }

    /// A member goes through shared memory from now on, if its connection does.
    pub(super) fn enter_ring(&mut self, fd: c_int) {
        let Some(sock) = sock::get(fd).filter(|sock| sock.stage() == Stage::Met && !sock.is_over()) else {
            return;
        };
        let (is_nested, Some(link)) = (self.is_nested, sock.link()) else { return };
        if self.item(fd).is_none_or(|item| item.ring.is_some()) {
            return;
        }
        if is_nested {
            return sock.demote(Why::NestedEpoll);
        }
        let is_off = self.is_off_in_kernel(fd);
        let changed = self.kernel(libc::EPOLL_CTL_MOD, fd, SOCKET_EVENTS, tag() | fd as u64)
            // An exclusive member cannot be changed.
            || (self.kernel(libc::EPOLL_CTL_DEL, fd, 0, 0)
                && self.kernel(libc::EPOLL_CTL_ADD, fd, SOCKET_EVENTS, tag() | fd as u64));
        if !changed || !self.kernel(libc::EPOLL_CTL_ADD, link.door, DOOR_EVENTS, tag() | DOOR_TAG | fd as u64)
        {
            sock.demote(Why::NoResources);
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
        };
        if let Some(item) = self.item(fd) {
            item.ring = Some(ring);
        }
        self.ring_items += 1;
        self.make_hot(fd);
    }

    /// Whether a member was reported once (EPOLLONESHOT) and not asked for again: what the kernel shows of its object.
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

    /// The program's own wish goes to the kernel; of a member that is off, that it is one.
    fn restore(&mut self, fd: c_int, is_off: bool) {
        let Some(&mut Item { events, data, .. }) = self.item(fd) else { return };
        let kept = if is_off { ONE_SHOT | EDGE } else { !(libc::EPOLLEXCLUSIVE as u32) };
        self.kernel(libc::EPOLL_CTL_MOD, fd, events & kept, data);
    }

    /// The kernel knows all the rest of this connection.
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
        self.hot.retain(|hot| *hot != fd);
        if let Some(link) = ring.sock.link() {
            self.kernel(libc::EPOLL_CTL_DEL, link.door, 0, 0);
        }
        if ring.is_armed {
            poll::disarm(&ring.sock);
        }
    }

    /// EPOLL_CTL_MOD.
    fn change(&mut self, fd: c_int, events: u32, data: u64) {
        let Some(item) = self.item(fd) else { return };
        (item.events, item.data) = (events, data);
        if let Some(ring) = &mut item.ring {
            (ring.off, ring.asks_kernel) = (Off::No, !ring.is_kernel_quiet);
            (ring.seen_bytes, ring.seen_full) = (0, u32::MAX);
        }
        self.make_hot(fd);
    }

    /// A member is to be looked at: by this thread, or by one that sleeps.
    fn make_hot(&mut self, fd: c_int) {
        let has_sleepers = self.sleepers > 0;
        let Some(ring) = self.ring(fd) else { return };
        if has_sleepers {
            if !ring.is_armed && !ring.is_hot {
                ring.is_armed = true;
                poll::arm(&ring.sock);
            }
            if let Some(link) = ring.sock.link() {
                own_fds::ring(link.door);
            }
        } else {
            self.heat(fd);
        }
    }

    pub(super) fn heat(&mut self, fd: c_int) {
        let Some(ring) = self.ring(fd) else { return };
        if ring.is_armed {
            ring.is_armed = false;
            poll::disarm(&ring.sock);
        }
        if !ring.is_hot && ring.off == Off::No {
            ring.is_hot = true;
            self.hot.push(fd);
        }
    }
}
