//! Waiting for descriptors of which some go through shared memory: poll, select, and calls that block.

mod sleeper;

use std::ffi::c_int;

use libc::{pollfd, sigset_t, timespec};

use self::sleeper::Sleeper;
use crate::readiness::{IN, Readiness, arm, disarm, readiness_with};
use crate::sock::{Direction, KernelWait, SockRef, Stage};
use crate::spin::Spin;
use crate::{clock, epoll, errno, jumps, real, sock};

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
                inside.push(sock.enter_kernel(Direction::Receive));
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

/// Reports the descriptors that can be read from what was left in rings. Returns their number; if it is 0, the kernel
/// knows everything.
pub fn poll_when_confined(fds: &mut [pollfd]) -> c_int {
    let mut found = 0;
    for entry in fds.iter_mut() {
        let can_be_read = sock::get(entry.fd).is_some_and(|sock| sock.unread_bytes() > 0);
        entry.revents = if can_be_read { entry.events & IN } else { 0 };
        found += c_int::from(entry.revents != 0);
    }
    found
}
