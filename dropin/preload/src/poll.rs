//! Waiting for descriptors of which some go through shared memory: poll, select, and calls that block.

use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;

use libc::{pollfd, sigset_t, timespec};

use crate::ring::{Look, Ring};
use crate::sleepers::Sleeper;
use crate::sock::{InKernel, KernelWait, Link, Sock, SockRef, Stage};
use crate::spin::Spin;
use crate::switch::Switch;
use crate::{clock, epoll, errno, jumps, real, sock, tcp};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// Readiness of a connection by its rings, and events that the kernel must be queried for.
#[derive(Clone, Copy)]
pub struct Readiness {
    /// Requested events that are ready.
    pub ready: i16,
    /// For the kernel.
    pub ask: i16,
}

/// Polls a connection for poll's `events`.
pub fn readiness(fd: c_int, sock: &Sock, events: i16) -> Readiness {
    readiness_with(fd, sock, events, 0)
}

/// Polls a connection for poll's `events`; fewer than `enough_bytes` bytes are not readable.
fn readiness_with(fd: c_int, sock: &Sock, events: i16, enough_bytes: u64) -> Readiness {
    let Some(link) = sock.link() else { return Readiness { ready: 0, ask: events } };
    let (mut ready, mut ask) = (0, events);
    // Bytes that went by TCP before the ring may not have arrived yet.
    let has_error = sock.pending_error.load(SeqCst) != 0;
    let unread_bytes = link.inn.look().unread_bytes;
    let low_water_bytes = u64::from(sock.low_water_bytes.load(SeqCst)).max(enough_bytes);
    let is_readable = unread_bytes > 0
        && if link.inn.is_reached(0) {
            is_enough(fd, low_water_bytes, unread_bytes)
        } else {
            is_enough_across(fd, low_water_bytes, &link.inn, unread_bytes)
        };
    if enough_bytes > 0 {
        // The kernel would report any number of bytes.
        ask = ask & !IN | libc::POLLRDHUP;
    }
    if is_readable || has_error {
        ready |= events & IN;
    }
    if has_error {
        ready |= libc::POLLERR;
    }
    let Look { is_closed, .. } = link.out.look();
    if link.out.has_begun() && !is_closed {
        // The kernel would say that there is room.
        ask = ask & !OUT | libc::POLLRDHUP;
        if link.out.has_room() {
            ready |= events & OUT;
        }
    }
    Readiness { ready, ask }
}

/// Returns whether a receiver is notified of bytes that wait in the ring, together with those behind it in the kernel
/// (SO_RCVLOWAT).
fn is_enough(fd: c_int, low_water_bytes: u64, unread_bytes: u64) -> bool {
    unread_bytes >= low_water_bytes
        || unread_bytes + tcp::unread_bytes(fd) >= low_water_bytes
        // An end, or an error.
        || tcp::is_ended(fd)
}

/// Returns whether bytes that went by TCP before the ring, too few by themselves for SO_RCVLOWAT, are enough together
/// with those in the ring. The kernel reports any number of them if the option has its default.
fn is_enough_across(fd: c_int, low_water_bytes: u64, inn: &Switch<Ring>, unread_bytes: u64) -> bool {
    if low_water_bytes <= 1 {
        return false;
    }
    let waiting_bytes = tcp::unread_bytes(fd);
    inn.have_arrived_before(waiting_bytes) && unread_bytes + waiting_bytes >= low_water_bytes
}

/// Waits in the kernel's poll for descriptors none of which needs more than that; `None` if one does.
pub fn kernel_waits(fds: &[pollfd]) -> Option<Vec<KernelWait>> {
    let mut waits = Vec::new();
    for entry in fds {
        if epoll::is_epoll(entry.fd) {
            return None;
        }
        if let Some(sock) = sock::get(entry.fd)
            && !sock.is_over()
        {
            waits.push(KernelWait::new(sock)?);
        }
    }
    Some(waits)
}

/// A connection among those that are waited for.
struct Waited {
    at: usize,
    sock: SockRef,
    /// Number of bytes from which the connection counts as readable.
    enough_bytes: u64,
}

/// Requirements of a function that waits for connections.
#[derive(Clone, Copy, Default)]
pub struct Caller {
    /// Number of bytes below which a connection is not readable; 0: none. Of bytes that come by TCP the wait is not
    /// notified then.
    pub enough_bytes: u64,
    /// Number of uses of each connection that the caller has, which end if the program jumps out of the wait.
    pub uses: u32,
}

impl Waited {
    fn readiness(&self, fds: &[pollfd]) -> Readiness {
        let entry = &fds[self.at];
        readiness_with(entry.fd, &self.sock, entry.events, self.enough_bytes)
    }
}

/// Like ppoll(2), with a time instead of a timeout.
pub fn poll(fds: &mut [pollfd], until_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    poll_for(fds, until_ns, mask, Caller::default())
}

/// Like [`poll`], with the requirements of the caller.
pub fn poll_for(fds: &mut [pollfd], until_ns: Option<u64>, mask: *const sigset_t, caller: Caller) -> c_int {
    let enough_bytes = caller.enough_bytes;
    for entry in fds.iter() {
        epoll::set_nested(entry.fd);
    }
    let socks = fds
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| Some(Waited { at, sock: sock::get(entry.fd)?, enough_bytes }));
    let socks: Vec<Waited> = socks.filter(|waited| waited.sock.stage() != Stage::Tcp).collect();
    for waited in socks.iter().filter(|waited| waited.sock.is_inherited()) {
        waited.sock.demote(farcall_stats::PathReason::Forked);
    }
    let mut kernel: Vec<pollfd> = Vec::with_capacity(fds.len() + 2 * socks.len());
    loop {
        let is_late = until_ns.is_some_and(|until| clock::now_ns() >= until);
        let any = || socks.iter().any(|waited| waited.readiness(fds).ready != 0);
        // A signal that waits is delivered by a call that finds nothing, and only by that one.
        let look_mask = if is_late && !any() { mask } else { std::ptr::null() };
        let found = look(fds, &socks, &mut kernel, look_mask);
        if found != 0 || is_late {
            return found;
        }
        let spins = socks.iter().any(|waited| waited.sock.stage() == Stage::Met);
        let mut spin = Spin::begin();
        let any = || socks.iter().any(|waited| waited.readiness(fds).ready != 0);
        let mut is_ready = any();
        while !is_ready && spins && spin.goes_on() {
            is_ready = any();
        }
        if is_ready {
            spin.found();
            continue;
        }
        let slept = sleep(fds, &socks, &mut kernel, until_ns, mask, caller.uses);
        spin.found();
        if slept < 0 {
            return -1;
        }
    }
}

/// Maximum number of times that the kernel is asked again because rings have become ready in the meantime.
const COLLECTIONS_MAX: u32 = 16;

/// Asks rings and kernel, without waiting: how many are ready.
///
/// Rings that are ready before the kernel is asked, and no others after it, are seen at one moment with what the kernel
/// has: no descriptor is reported without one that had become ready before it, and caused it.
fn look(fds: &mut [pollfd], socks: &[Waited], kernel: &mut Vec<pollfd>, mask: *const sigset_t) -> c_int {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    let mut rings = Vec::new();
    for _ in 0..COLLECTIONS_MAX {
        fill(fds, socks, kernel);
        let is_alone = socks.len() == fds.len() && fds.len() == 1;
        // Found twice: what caused one to become ready may have made one ready that was checked before it.
        for _ in 0..=socks.len() {
            if !has_more(fds, socks, &mut rings) || is_alone {
                break;
            }
        }
        // SAFETY: the vector is valid.
        let asked = unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as _, &raw const none, mask) };
        if asked < 0 {
            if errno::get() == libc::EINTR {
                // Linux stores the results of an interrupted poll, too: none.
                fds.iter_mut().for_each(|entry| entry.revents = 0);
            }
            return asked;
        }
        if is_alone || !has_more(fds, socks, &mut rings.clone()) {
            break;
        }
    }
    take(fds, socks, kernel, &rings)
}

/// Checks all rings. Returns whether one is ready that was not.
fn has_more(fds: &[pollfd], socks: &[Waited], rings: &mut Vec<i16>) -> bool {
    rings.resize(socks.len(), 0);
    let mut has_more = false;
    for (waited, ready) in socks.iter().zip(rings) {
        let now = waited.readiness(fds).ready;
        has_more |= now & !*ready != 0;
        *ready = now;
    }
    has_more
}

/// Fills `kernel` with the entries to query: the program's descriptors, in their order.
fn fill(fds: &[pollfd], socks: &[Waited], kernel: &mut Vec<pollfd>) {
    kernel.clear();
    kernel.extend(fds.iter().map(|entry| pollfd { revents: 0, ..*entry }));
    for waited in socks {
        kernel[waited.at].events = waited.readiness(fds).ask;
    }
}

/// Stores the results of the kernel and of the rings for the program. Returns the number of ready descriptors.
fn take(fds: &mut [pollfd], socks: &[Waited], kernel: &[pollfd], rings: &[i16]) -> c_int {
    for (entry, asked) in fds.iter_mut().zip(kernel) {
        entry.revents = asked.revents & (entry.events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
    }
    for (waited, ready) in socks.iter().zip(rings) {
        let entry = &mut fds[waited.at];
        entry.revents |= ready;
        if kernel[waited.at].revents & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
            waited.sock.peer_has_ended(entry.fd);
            let ready = waited.readiness(fds).ready;
            fds[waited.at].revents |= ready;
        }
    }
    fds.iter().filter(|entry| entry.revents != 0).count() as c_int
}

/// Sleeps until something may have happened; -1: `errno` is set.
fn sleep(
    fds: &mut [pollfd],
    socks: &[Waited],
    kernel: &mut Vec<pollfd>,
    until_ns: Option<u64>,
    mask: *const sigset_t,
    uses: u32,
) -> c_int {
    fill(fds, socks, kernel);
    let (mut inside, mut armed, mut sleepers, mut is_ready) = (Vec::new(), Vec::new(), Vec::new(), false);
    for waited in socks {
        let sock = &*waited.sock;
        let entry = &fds[waited.at];
        match sock.stage() {
            Stage::Accepted | Stage::Connected | Stage::Meeting | Stage::Turning => {
                inside.push(InKernel::new(&sock.kernel_receivers));
                is_ready |= !(sock.stage().is_unmet() || sock.stage() == Stage::Tcp);
            }
            Stage::Met => {
                // A descriptor may be there twice.
                if !armed.iter().any(|other: &&Waited| std::ptr::eq(&*other.sock, sock)) {
                    arm(sock);
                    armed.push(waited);
                    if sock.link().is_some_and(|link| link.door.hears()) {
                        match Sleeper::enter(entry.fd, sock) {
                            Some((sleeper, fd)) => {
                                kernel.push(pollfd { fd, events: libc::POLLIN, revents: 0 });
                                sleepers.push(sleeper);
                            }
                            None => is_ready = true,
                        }
                    }
                }
                is_ready |= waited.readiness(fds).ready != 0;
                is_ready |= waited.readiness(fds).ask != kernel[waited.at].events;
            }
            Stage::Tcp => {}
        }
    }
    let mut slept = 0;
    if !is_ready {
        let mut undo = || {
            inside.clear();
            sleepers.clear();
            armed.iter().for_each(|waited| disarm(&waited.sock));
            // SAFETY: the program jumps out of the functions that have these uses.
            socks.iter().for_each(|waited| unsafe { waited.sock.end_left(uses) });
        };
        slept = jumps::wait(&mut undo, || sleep_in_kernel(kernel, until_ns, mask));
    }
    let error = errno::get();
    drop(inside);
    for (sleeper, door) in sleepers.iter().zip(&kernel[fds.len()..]) {
        if door.revents != 0 {
            sleeper.was_woken();
        }
    }
    for waited in armed {
        disarm(&waited.sock);
    }
    if slept < 0 && error == libc::EINVAL && !sleepers.is_empty() {
        // With the doorbells they are more than RLIMIT_NOFILE: the program's alone may be as many.
        socks.iter().for_each(|waited| waited.sock.demote(farcall_stats::PathReason::NoResources));
        slept = 0;
    }
    errno::set(error);
    slept
}

fn sleep_in_kernel(kernel: &mut [pollfd], until_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    let rest = until_ns.map(|until| {
        let rest_ns = until.saturating_sub(clock::now_ns());
        timespec { tv_sec: (rest_ns / 1_000_000_000) as _, tv_nsec: (rest_ns % 1_000_000_000) as _ }
    });
    let rest = rest.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice and the time are valid; the mask is the program's.
    unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as _, rest, mask) }
}

/// Notifies the peer that a thread sleeps; the caller must poll once more.
pub fn arm(sock: &Sock) {
    let Some(link) = sock.link() else { return };
    sock.sleepers.fetch_add(1, SeqCst);
    arm_ring(link);
    if let Some(shown) = sock.shown() {
        shown.sleeps.increment();
    }
}

/// Notifies the peer again that a thread sleeps: it has rung since. The caller must poll once more.
pub fn rearm(sock: &Sock) {
    if let Some(link) = sock.link() {
        arm_ring(link);
    }
}

/// Withdraws the notification that a thread sleeps until bytes arrive. Returns whether the peer has not rung because
/// of it.
pub fn take_back(sock: &Sock) -> bool {
    let Some(link) = sock.link() else { return true };
    let sent_bytes = link.inn.sent_bytes();
    if !link.inn.takes_data_wake() {
        return false;
    }
    // Another thread may have notified it, too, before the counter was read; or it does so after this.
    if sock.sleepers.load(SeqCst) > 1 {
        arm_ring(link);
        if link.inn.sent_bytes() != sent_bytes {
            // It may have missed these bytes.
            sock.demote(farcall_stats::PathReason::NoResources);
        }
    }
    true
}

/// Announces that a thread sleeps until bytes arrive and, if the ring to the peer is full, until there is free space. A
/// thread that waits for space does not sleep if there is some; the thread that fills the ring concurrently announces
/// it (`io::send`).
fn arm_ring(link: &Link) {
    link.inn.arm_data();
    if !link.out.has_room() {
        link.out.arm_room();
    }
}

/// Sleeps no more; others may still do so.
pub fn disarm(sock: &Sock) {
    let Some(link) = sock.link() else { return };
    if sock.sleepers.fetch_sub(1, SeqCst) > 1 {
        arm_ring(link);
    }
}
