//! epoll objects with members that use rings.
//!
//! A member whose connection has moved to shared memory stays in the kernel's object, edge-triggered and with a tag of
//! the library instead of the program's data, and so does its doorbell. Members are *hot* or *cold*. Every wait polls
//! hot members. The peer of a cold member was notified that a thread sleeps; the member becomes hot when the kernel
//! reports its doorbell or its socket. Before a thread sleeps, or returns while others sleep, it makes all members cold
//! and polls once more, so that no wake-up is lost and idle members cost nothing. Where waits have capacity for few
//! events, no member is hot (`ordered`).
//!
//! A level-triggered member is reported while it is ready. An edge-triggered one is reported when bytes have arrived,
//! or free space has appeared, since it was reported last. The state that only the kernel knows (ends, errors, bytes
//! that still go by TCP) is queried by `poll` after the kernel has reported the socket.

mod members;
mod ordered;
mod ready;
mod reported;
mod tags;
mod wait;

use std::ffi::c_int;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8};

use farcall_shm::Mutex;
use farcall_stats::PathReason;
use libc::epoll_event;

use self::members::{Member, State};
use self::tags::is_tagged;
pub use self::wait::{Timeout, wait};
use crate::fd_set::FDS;
use crate::{errno, libc_next, pointers};

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// An epoll object, which is never freed but reused.
#[derive(Default)]
pub struct Epoll(Mutex<State>);

static TABLE: [AtomicPtr<Epoll>; FDS] = [const { AtomicPtr::new(ptr::null_mut()) }; FDS];
static ALL: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());
static FREE: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());
/// Number of objects of which each descriptor is a member.
static MEMBERSHIPS: [AtomicU8; FDS] = [const { AtomicU8::new(0) }; FDS];

fn get(fd: c_int) -> Option<&'static Epoll> {
    // SAFETY: null, or an object that is never freed.
    unsafe { TABLE.get(fd as usize)?.load(Acquire).as_ref() }
}

/// Returns whether a descriptor belongs to an epoll object that the library knows.
pub fn is_epoll(fd: c_int) -> bool {
    get(fd).is_some()
}

/// Returns whether a descriptor is an epoll object or a member of one.
pub fn is_known(fd: c_int) -> bool {
    is_epoll(fd) || MEMBERSHIPS.get(fd as usize).is_some_and(|count| count.load(Relaxed) > 0)
}

/// Called after `epoll_create`.
pub fn created(fd: c_int) {
    if !(0..FDS as c_int).contains(&fd) {
        return;
    }
    let reused = FREE.lock().pop();
    let epoll = reused.unwrap_or_else(|| {
        let epoll: &'static Epoll = Box::leak(Box::default());
        ALL.lock().push(epoll);
        epoll
    });
    epoll.0.lock().fds.push(fd);
    TABLE[fd as usize].store(ptr::from_ref(epoll).cast_mut(), Release);
}

/// Called after a descriptor was duplicated.
pub fn after_dup(old: c_int, new: c_int) {
    let (Some(epoll), Some(entry)) = (get(old), TABLE.get(new as usize)) else { return };
    epoll.0.lock().fds.push(new);
    entry.store(ptr::from_ref(epoll).cast_mut(), Release);
}

/// Called before a descriptor is closed, which may be an epoll object and a member of others.
pub fn before_close(fd: c_int) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    if MEMBERSHIPS[fd as usize].load(Relaxed) > 0 {
        each_with(fd, |state| state.remove(fd));
    }
    let found = entry.swap(ptr::null_mut(), AcqRel);
    // SAFETY: null, or an object that is never freed: objects are leaked, and only used again.
    let Some(epoll) = (unsafe { found.as_ref() }) else { return };
    let mut state = epoll.0.lock();
    state.fds.retain(|other| *other != fd);
    if state.fds.is_empty() {
        for member in 0..state.members.len() as c_int {
            state.remove(member);
        }
        *state = State::default();
        drop(state);
        FREE.lock().push(epoll);
    }
}

/// Calls `with` for each object of which a descriptor is a member.
fn each_with(fd: c_int, mut with: impl FnMut(&mut State)) {
    for epoll in ALL.lock().iter() {
        let mut state = epoll.0.lock();
        if state.member(fd).is_some() {
            with(&mut state);
        }
    }
}

/// Returns whether a descriptor is a member of an object that is itself waited for by another one.
pub fn is_nested(fd: c_int) -> bool {
    let mut nested = false;
    each_with(fd, |state| nested |= state.is_nested);
    nested
}

/// Called when a connection has moved to shared memory: objects watch its rings from now on.
pub fn watch(fd: c_int) {
    each_with(fd, |state| state.enter_ring(fd));
}

/// Called when a thread that polled a connection's doorbell has consumed its bytes.
pub fn recheck(fd: c_int) {
    if MEMBERSHIPS.get(fd as usize).is_some_and(|count| count.load(Relaxed) > 0) {
        each_with(fd, |state| state.recheck(fd));
    }
}

/// Restores the events that the program requested for a descriptor in the kernel's objects.
pub fn release(fd: c_int) {
    each_with(fd, |state| {
        if state.ring(fd).is_some() {
            state.leave_ring(fd);
        }
    });
}

/// Reports the members of an object that can be read from rings, without a system call. Returns their number.
pub fn readable_members(epfd: c_int, into: &mut [epoll_event]) -> usize {
    const IN: u32 = libc::EPOLLIN as u32;
    let Some(epoll) = get(epfd) else { return 0 };
    let mut state = epoll.0.lock();
    let mut found = 0;
    for fd in 0..state.members.len() as c_int {
        let Some(&mut Member { events, data, .. }) = state.member(fd) else { continue };
        if found < into.len()
            && events & IN != 0
            && crate::sock::get(fd).is_some_and(|sock| sock.unread_bytes() > 0)
        {
            into[found] = epoll_event { events: IN, u64: data };
            found += 1;
        }
    }
    found
}

/// Called when another object, or poll, waits for this one.
pub fn set_nested(fd: c_int) {
    let Some(epoll) = get(fd) else { return };
    let mut state = epoll.0.lock();
    if state.is_nested {
        return;
    }
    state.is_nested = true;
    for member in 0..state.members.len() as c_int {
        let Some(ring) = state.ring(member) else { continue };
        let sock = ring.sock.clone();
        sock.demote(PathReason::NestedEpoll);
        if sock.has_returned() {
            state.leave_ring(member);
        }
    }
}

/// Acquires all locks before a fork.
pub fn lock_for_fork() -> impl Sized {
    let all = ALL.lock();
    let states: Vec<MutexGuard<'static, State>> = all.iter().map(|epoll| epoll.0.lock()).collect();
    (all, FREE.lock(), states)
}

/// Executes epoll_ctl(2).
///
/// # Safety
/// As its manual page says.
pub unsafe fn control(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let Some(epoll) = get(epfd) else {
        // SAFETY: `event` is null or the program's; the kernel reads it, and fails with EFAULT if it cannot.
        return unsafe { libc_next::epoll_ctl(epfd, operation, fd, event) };
    };
    if operation == libc::EPOLL_CTL_ADD {
        set_nested(fd);
    }
    let event_there = if pointers::can_read(event, 1) { event } else { ptr::null_mut() };
    // SAFETY: null, or the program's event.
    let requested = unsafe { event_there.as_ref() }.map(|event| (event.events, event.u64));
    if requested.is_some_and(|(_, data)| is_tagged(data)) {
        // The program's data equal a tag of the library: the kernel serves this object alone.
        set_nested(epfd);
    }
    let mut state = epoll.0.lock();
    if let Some(done) = state.control_ring(operation, fd, requested) {
        return done.map_or_else(errno::fail, |()| 0);
    }
    if operation == libc::EPOLL_CTL_ADD {
        state.before_addition();
    }
    // SAFETY: `event` is null or the program's; the kernel reads it, and fails with EFAULT if it cannot.
    let done = unsafe { libc_next::epoll_ctl(epfd, operation, fd, event) };
    if done == 0 && (0..FDS as c_int).contains(&fd) {
        match (operation, requested) {
            (libc::EPOLL_CTL_DEL, _) => state.remove(fd),
            (_, Some((events, data))) => state.record(fd, events, data),
            _ => {}
        }
    }
    done
}

/// Called in a forked child: none of its parent's threads sleep here.
pub fn enter_child() {
    for epoll in ALL.lock().iter() {
        epoll.0.lock().sleepers = 0;
    }
}
