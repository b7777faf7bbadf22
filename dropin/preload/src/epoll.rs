//! epoll objects of which some members go through shared memory.
//!
//! A member whose connection has met stays in the kernel's object, edge-triggered and with a tag of ours instead of the
//! program's data, and so does its doorbell. Members are *hot* or *cold*. Hot ones are looked at by every wait; a cold one
//! has told its peer that somebody sleeps, and becomes hot when the kernel reports its doorbell or its socket. Before a
//! thread sleeps, or leaves while others sleep, it makes all members cold and looks once more: so no wake-up is lost, and
//! idle members cost nothing.
//!
//! A level-triggered member is reported while it is ready; an edge-triggered one when bytes have come, or room after there
//! was none, since it was reported last; what the kernel alone knows of it (ends, errors, what still goes by TCP) is asked
//! of `poll` after the kernel has reported the socket.

use std::ffi::c_int;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use farcall_shm::Mutex;
use farcall_stats::Why;
use libc::{epoll_event, pollfd, sigset_t};

use crate::sock::{FDS, SockRef, Stage};
use crate::spin::Spin;
use crate::{clock, errno, own_fds, poll, real, sock};

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// What the kernel reports of a socket that goes through shared memory.
const SOCKET_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | EDGE;
const DOOR_EVENTS: u32 = libc::EPOLLIN as u32 | EDGE;
/// In a tag: it is of a doorbell.
const DOOR_TAG: u64 = 1 << 31;
/// Other descriptors are looked at so often while connections keep a thread busy.
const KERNEL_PERIOD_NS: u64 = 10_000;
/// And at the latest after so many reports.
const KERNEL_TURNS: u32 = 16;

/// One member.
struct Item {
    events: u32,
    data: u64,
    /// A connection that has met, and whose end the kernel does not know yet.
    ring: Option<RingItem>,
}

struct RingItem {
    sock: SockRef,
    is_hot: bool,
    is_armed: bool,
    /// Not to be reported before the program says so.
    off: Off,
    /// The kernel is to be asked.
    asks_kernel: bool,
    /// The kernel had nothing to tell when it was asked last, and has not reported the socket since.
    is_kernel_quiet: bool,
    seen_bytes: u64,
    seen_full: u32,
}

/// Why a member is not reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Off {
    /// It is.
    No,
    /// It was, once (EPOLLONESHOT).
    Reported,
    /// The program took it out; the kernel still has it, because many programs put it in again at once.
    Removed,
}

#[derive(Default)]
struct State {
    /// Its descriptors in this process.
    fds: Vec<c_int>,
    items: Vec<Option<Box<Item>>>,
    ring_items: usize,
    hot: Vec<c_int>,
    /// Threads that sleep in the kernel.
    sleepers: u32,
    /// Another object waits for this one: the kernel must know everything.
    is_nested: bool,
    looked_ns: u64,
    turns: u32,
}

/// An epoll object; never freed, only used again.
#[derive(Default)]
pub struct Epoll(Mutex<State>);

static TABLE: [AtomicPtr<Epoll>; FDS] = [const { AtomicPtr::new(ptr::null_mut()) }; FDS];
static ALL: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());
static FREE: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());
/// In how many objects a descriptor is.
static MEMBERSHIPS: [AtomicU8; FDS] = [const { AtomicU8::new(0) }; FDS];

/// The upper half of our tags: no pointer, no small number, and not the same in two processes.
fn tag() -> u64 {
    static TAG: AtomicU64 = AtomicU64::new(0);
    let known = TAG.load(Relaxed);
    if known != 0 {
        return known;
    }
    let made =
        (0x4000_0000 | (clock::now_ns() ^ u64::from(std::process::id()).rotate_left(16)) & 0x3FFF_FFFF) << 32;
    TAG.compare_exchange(0, made, Relaxed, Relaxed).map_or_else(|other| other, |_| made)
}

fn is_tagged(data: u64) -> bool {
    data & !0xFFFF_FFFF == tag()
}

fn get(fd: c_int) -> Option<&'static Epoll> {
    // SAFETY: null, or an object that is never freed.
    unsafe { TABLE.get(fd as usize)?.load(Acquire).as_ref() }
}

/// Whether a descriptor is one of an epoll object that we know.
pub fn is_epoll(fd: c_int) -> bool {
    get(fd).is_some()
}

/// Whether a descriptor is an object or a member of one.
pub fn is_known(fd: c_int) -> bool {
    is_epoll(fd) || MEMBERSHIPS.get(fd as usize).is_some_and(|count| count.load(Relaxed) > 0)
}

/// After `epoll_create`.
pub fn created(fd: c_int) {
    if !(0..FDS as c_int).contains(&fd) {
        return;
    }
    crate::fork::prepare();
    let reused = FREE.lock().pop();
    let epoll = reused.unwrap_or_else(|| {
        let epoll: &'static Epoll = Box::leak(Box::default());
        ALL.lock().push(epoll);
        epoll
    });
    epoll.0.lock().fds.push(fd);
    TABLE[fd as usize].store(ptr::from_ref(epoll).cast_mut(), Release);
}

/// After a descriptor was duplicated.
pub fn duplicated(old: c_int, new: c_int) {
    let (Some(epoll), Some(entry)) = (get(old), TABLE.get(new as usize)) else { return };
    epoll.0.lock().fds.push(new);
    entry.store(ptr::from_ref(epoll).cast_mut(), Release);
}

/// Before a descriptor is closed: as an epoll object, and as a member of some.
pub fn closing(fd: c_int) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    if MEMBERSHIPS[fd as usize].load(Relaxed) > 0 {
        each_with(fd, |state| state.remove(fd));
    }
    let found = entry.swap(ptr::null_mut(), AcqRel);
    // SAFETY: as in `get`.
    let Some(epoll) = (unsafe { found.as_ref() }) else { return };
    let mut state = epoll.0.lock();
    state.fds.retain(|other| *other != fd);
    if state.fds.is_empty() {
        for member in 0..state.items.len() as c_int {
            state.remove(member);
        }
        *state = State::default();
        drop(state);
        FREE.lock().push(epoll);
    }
}

/// The objects that a descriptor is in.
fn each_with(fd: c_int, mut with: impl FnMut(&mut State)) {
    for epoll in ALL.lock().iter() {
        let mut state = epoll.0.lock();
        if state.item(fd).is_some() {
            with(&mut state);
        }
    }
}

/// Whether a descriptor is in an object that another waits for.
pub fn is_nested(fd: c_int) -> bool {
    let mut nested = false;
    each_with(fd, |state| nested |= state.is_nested);
    nested
}

/// A connection has met: its members go through shared memory.
pub fn watch(fd: c_int) {
    each_with(fd, |state| state.enter_ring(fd));
}

/// Another object, or poll, waits for this one.
pub fn set_nested(fd: c_int) {
    let Some(epoll) = get(fd) else { return };
    let mut state = epoll.0.lock();
    if state.is_nested {
        return;
    }
    state.is_nested = true;
    for member in 0..state.items.len() as c_int {
        let Some(ring) = state.ring(member) else { continue };
        let sock = ring.sock.clone();
        sock.demote(Why::NestedEpoll);
        if sock.is_over() {
            state.leave_ring(member);
        } else if let Some(link) = sock.link() {
            own_fds::ring(link.door);
        }
    }
}

/// Everything locked, for a fork.
pub fn lock_for_fork() -> impl Sized {
    let all = ALL.lock();
    let states: Vec<MutexGuard<'static, State>> = all.iter().map(|epoll| epoll.0.lock()).collect();
    (all, FREE.lock(), states)
}

/// epoll_ctl(2).
///
/// # Safety
/// As its manual page says.
pub unsafe fn control(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(epoll) = get(epfd) else {
        // SAFETY: the caller's promise.
        return unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    };
    if operation == libc::EPOLL_CTL_ADD {
        set_nested(fd);
    }
    // SAFETY: null, or the program's event.
    let wish = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    if wish.is_some_and(|(_, data)| is_tagged(data)) {
        // The program's data look like ours: let the kernel do all of it.
        set_nested(epfd);
    }
    let mut state = epoll.0.lock();
    if let Some(done) = state.control_ring(operation, fd, wish) {
        return done.map_or_else(errno::fail, |()| 0);
    }
    // SAFETY: the caller's promise.
    let done = unsafe { real::epoll_ctl(epfd, operation, fd, event) };
    if done == 0 && (0..FDS as c_int).contains(&fd) {
        match (operation, wish) {
            (libc::EPOLL_CTL_DEL, _) => state.remove(fd),
            (_, Some((events, data))) => state.record(fd, events, data),
            _ => {}
        }
    }
    done
}

impl State {
    fn epfd(&self) -> c_int {
        self.fds.first().copied().unwrap_or(-1)
    }

    fn item(&mut self, fd: c_int) -> Option<&mut Item> {
        self.items.get_mut(fd as usize)?.as_deref_mut()
    }

    fn ring(&mut self, fd: c_int) -> Option<&mut RingItem> {
        self.item(fd)?.ring.as_mut()
    }

    /// What epoll_ctl comes to for a member that goes through shared memory; `None`: the kernel is to be asked.
    fn control_ring(
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
    fn record(&mut self, fd: c_int, events: u32, data: u64) {
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
    fn remove(&mut self, fd: c_int) {
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
    fn enter_ring(&mut self, fd: c_int) {
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
    fn leave_ring(&mut self, fd: c_int) {
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

    fn heat(&mut self, fd: c_int) {
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

    /// What a member would be reported with; 0: nothing. `None`: it is over.
    fn pending(&mut self, fd: c_int) -> Option<u32> {
        let Some(item) = self.item(fd) else { return Some(0) };
        let (wanted, Some(ring)) = (item.events, &mut item.ring) else { return Some(0) };
        if ring.off != Off::No {
            return Some(0);
        }
        if ring.sock.is_inherited() {
            ring.sock.demote(Why::Forked);
        }
        let asked = if ring.asks_kernel { ask_kernel(fd, &ring.sock) } else { 0 };
        if ring.asks_kernel {
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
    fn report(&mut self, fd: c_int, ready: u32) -> Option<epoll_event> {
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
    fn scan(&mut self, into: &mut [epoll_event]) -> (usize, bool) {
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
    fn cool(&mut self) -> bool {
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
    fn leave(&mut self) {
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
    fn translate(&mut self, events: &mut [epoll_event]) -> (usize, bool) {
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

/// epoll_pwait(2), with a time instead of a timeout.
///
/// # Safety
/// As its manual page says.
pub unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    until_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    let Some(epoll) = get(epfd).filter(|_| max > 0 && !events.is_null()) else {
        // SAFETY: the caller's promise.
        return unsafe { real::epoll_pwait(epfd, events, max, timeout_ms(until_ns), mask) };
    };
    // SAFETY: the program's events, all of which may be written; zeros are valid events.
    let into = unsafe {
        ptr::write_bytes(events, 0, 1);
        std::slice::from_raw_parts_mut(events, max as usize)
    };
    let mut spin: Option<Spin> = None;
    let mut error = 0;
    let done = loop {
        let mut state = epoll.0.lock();
        if state.ring_items > 0 && state.looked_ns == 0 {
            let (kept, _) = state.look(epfd, into, mask);
            if kept > 0 {
                state.leave();
                break kept;
            }
        }
        let (found, has_changed) = state.scan(into);
        if found > 0 {
            break state.finish(epfd, into, found);
        }
        let now_ns = clock::now_ns();
        let is_late = until_ns.is_some_and(|until| now_ns >= until);
        let looks = is_late || has_changed || now_ns.wrapping_sub(state.looked_ns) > KERNEL_PERIOD_NS;
        let has_rings = state.ring_items > 0;
        if has_rings && looks {
            let (kept, has_tags) = state.look(epfd, into, mask);
            if kept != 0 {
                error = errno::get();
                state.leave();
                break kept;
            }
            if has_tags {
                continue;
            }
            if is_late {
                state.leave();
                break 0;
            }
        }
        let is_hot = !state.hot.is_empty();
        if is_hot {
            drop(state);
            if spin.get_or_insert_with(Spin::begin).goes_on() {
                continue;
            }
            state = epoll.0.lock();
            if state.cool() {
                continue;
            }
        }
        state.sleepers += 1;
        drop(state);
        // SAFETY: the caller's promise.
        let slept = unsafe { real::epoll_pwait(epfd, into.as_mut_ptr(), max, timeout_ms(until_ns), mask) };
        error = errno::get();
        let mut state = epoll.0.lock();
        state.sleepers = state.sleepers.saturating_sub(1);
        if let Some(spin) = spin.take() {
            spin.found();
        }
        if slept <= 0 {
            state.leave();
            break slept;
        }
        state.looked_ns = clock::now_ns();
        let (kept, _) = state.translate(&mut into[..slept as usize]);
        if kept > 0 {
            state.leave();
            break kept as c_int;
        }
    };
    if done > 0
        && let Some(spin) = spin
    {
        spin.found();
    }
    if done < 0 {
        errno::set(error);
    }
    done
}

impl State {
    /// The kernel's events, without waiting: the program's, or -1; and whether there were others.
    fn look(&mut self, epfd: c_int, into: &mut [epoll_event], mask: *const sigset_t) -> (c_int, bool) {
        self.looked_ns = clock::now_ns();
        // SAFETY: the slice is valid; the mask is the program's.
        let found = unsafe { real::epoll_pwait(epfd, into.as_mut_ptr(), into.len() as c_int, 0, mask) };
        if found < 0 {
            return (found, false);
        }
        let (kept, has_tags) = self.translate(&mut into[..found as usize]);
        (kept as c_int, has_tags)
    }

    /// Members were found ready: now and then others get their turn.
    fn finish(&mut self, epfd: c_int, into: &mut [epoll_event], found: usize) -> c_int {
        self.turns += 1;
        let mut more = 0;
        if self.turns >= KERNEL_TURNS {
            self.turns = 0;
            if found < into.len() {
                more = self.look(epfd, &mut into[found..], ptr::null()).0.max(0);
            } else {
                // The next wait begins with the kernel.
                self.looked_ns = 0;
            }
        }
        self.leave();
        found as c_int + more
    }
}

fn timeout_ms(until_ns: Option<u64>) -> c_int {
    let Some(until) = until_ns else { return -1 };
    let rest_ns = until.saturating_sub(clock::now_ns());
    c_int::try_from(rest_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// In a forked child: none of its parent's threads sleep here.
pub fn enter_child() {
    for epoll in ALL.lock().iter() {
        epoll.0.lock().sleepers = 0;
    }
}
