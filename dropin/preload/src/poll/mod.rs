//! Waits for descriptors of which some use rings: poll, select, and calls that block.

mod waiter;

use std::ffi::c_int;

use libc::{pollfd, sigset_t, timespec};

use self::waiter::Waiter;
use crate::readiness::{IN, Readiness, arm, disarm, readiness_with};
use crate::sock::{Direction, KernelWait, SockRef, Stage};
use crate::spin::SpinPolicy;
use crate::{clock, epoll, errno, jumps, libc_next, sock};

/// Waits in the kernel's poll for descriptors none of which needs more than that; `None` if one does.
pub fn kernel_waits(fds: &[pollfd]) -> Option<Vec<KernelWait>> {
    let mut waits = Vec::new();
    for entry in fds {
        if epoll::is_epoll(entry.fd) {
            return None;
        }
        if let Some(sock) = sock::get(entry.fd)
            && !sock.has_returned()
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
    /// Number of bytes below which a connection is not readable; 0: none. The wait is not notified then of bytes that
    /// arrive by TCP.
    pub enough_bytes: u64,
    /// Number of uses of each connection that the caller has, which end if the program jumps out of the wait.
    pub references: u32,
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
    let waited = fds
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| Some(Waited { at, sock: sock::get(entry.fd)?, enough_bytes }));
    let waited: Vec<Waited> = waited.filter(|waited| waited.sock.stage() != Stage::Tcp).collect();
    for waited in waited.iter().filter(|waited| waited.sock.is_inherited()) {
        waited.sock.demote(farcall_stats::PathReason::Forked);
    }
    let mut kernel: Vec<pollfd> = Vec::with_capacity(fds.len() + 2 * waited.len());
    loop {
        let is_late = until_ns.is_some_and(|until| clock::now_ns() >= until);
        let any_ready = || waited.iter().any(|waited| waited.readiness(fds).ready != 0);
        // A signal that waits is delivered by a call that finds nothing, and only by that one.
        let query_mask = if is_late && !any_ready() { mask } else { std::ptr::null() };
        let found = poll_once(fds, &waited, &mut kernel, query_mask);
        if found != 0 || is_late {
            return found;
        }
        let spins = waited.iter().any(|waited| waited.sock.stage() == Stage::Paired);
        let mut spin = SpinPolicy::begin();
        let any_ready = || waited.iter().any(|waited| waited.readiness(fds).ready != 0);
        let mut is_ready = any_ready();
        while !is_ready && spins && spin.should_spin() {
            is_ready = any_ready();
        }
        if is_ready {
            spin.on_success();
            continue;
        }
        let slept = sleep(fds, &waited, &mut kernel, until_ns, mask, caller.references);
        spin.on_success();
        if slept < 0 {
            return -1;
        }
    }
}

/// Maximum number of times that the kernel is queried again because rings have become ready in the meantime.
const COLLECTIONS_MAX: u32 = 16;

/// Queries rings and kernel without waiting. Returns the number of ready descriptors.
///
/// Rings that are ready before the kernel is queried, and no others after it, form one snapshot with the kernel's
/// result: no descriptor is reported without one that had become ready before it, and caused it.
fn poll_once(
    fds: &mut [pollfd],
    waited: &[Waited],
    kernel: &mut Vec<pollfd>,
    mask: *const sigset_t,
) -> c_int {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    let mut rings = Vec::new();
    for _ in 0..COLLECTIONS_MAX {
        fill_queries(fds, waited, kernel);
        let is_alone = waited.len() == fds.len() && fds.len() == 1;
        // Found twice: what caused one to become ready may have made one ready that was checked before it.
        for _ in 0..=waited.len() {
            if !has_more(fds, waited, &mut rings) || is_alone {
                break;
            }
        }
        // SAFETY: the vector is valid.
        let asked =
            unsafe { libc_next::ppoll(kernel.as_mut_ptr(), kernel.len() as _, &raw const none, mask) };
        if asked < 0 {
            if errno::get() == libc::EINTR {
                // Linux stores the results of an interrupted poll, too: none.
                fds.iter_mut().for_each(|entry| entry.revents = 0);
            }
            return asked;
        }
        if is_alone || !has_more(fds, waited, &mut rings.clone()) {
            break;
        }
    }
    store_results(fds, waited, kernel, &rings)
}

/// Checks all rings. Returns whether one is ready that was not.
fn has_more(fds: &[pollfd], waited: &[Waited], rings: &mut Vec<i16>) -> bool {
    rings.resize(waited.len(), 0);
    let mut has_more = false;
    for (waited, ready) in waited.iter().zip(rings) {
        let now = waited.readiness(fds).ready;
        has_more |= now & !*ready != 0;
        *ready = now;
    }
    has_more
}

/// Fills `kernel` with the entries to query: the program's descriptors, in their order.
fn fill_queries(fds: &[pollfd], waited: &[Waited], kernel: &mut Vec<pollfd>) {
    kernel.clear();
    kernel.extend(fds.iter().map(|entry| pollfd { revents: 0, ..*entry }));
    for waited in waited {
        kernel[waited.at].events = waited.readiness(fds).kernel_events;
    }
}

/// Stores the results of the kernel and of the rings for the program. Returns the number of ready descriptors.
fn store_results(fds: &mut [pollfd], waited: &[Waited], kernel: &[pollfd], rings: &[i16]) -> c_int {
    for (entry, asked) in fds.iter_mut().zip(kernel) {
        entry.revents = asked.revents & (entry.events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
    }
    for (waited, ready) in waited.iter().zip(rings) {
        let entry = &mut fds[waited.at];
        entry.revents |= ready;
        if kernel[waited.at].revents & (libc::POLLRDHUP | libc::POLLHUP) != 0 {
            waited.sock.on_peer_end(entry.fd);
            let ready = waited.readiness(fds).ready;
            fds[waited.at].revents |= ready;
        }
    }
    fds.iter().filter(|entry| entry.revents != 0).count() as c_int
}

/// Sleeps until a descriptor may be ready; -1: `errno` is set.
fn sleep(
    fds: &mut [pollfd],
    waited: &[Waited],
    kernel: &mut Vec<pollfd>,
    until_ns: Option<u64>,
    mask: *const sigset_t,
    references: u32,
) -> c_int {
    fill_queries(fds, waited, kernel);
    let (mut kernel_calls, mut armed, mut waiters, mut is_ready) =
        (Vec::new(), Vec::new(), Vec::new(), false);
    for waited in waited {
        let sock = &*waited.sock;
        let entry = &fds[waited.at];
        match sock.stage() {
            Stage::Accepted | Stage::Connected | Stage::Published | Stage::Switching => {
                kernel_calls.push(sock.enter_kernel(Direction::Receive));
                is_ready |= !(sock.stage().is_unpaired() || sock.stage() == Stage::Tcp);
            }
            Stage::Paired => {
                // A descriptor may be there twice.
                if !armed.iter().any(|other: &&Waited| std::ptr::eq(&*other.sock, sock)) {
                    arm(sock);
                    armed.push(waited);
                    if sock.link().is_some_and(|link| link.doorbell.is_open()) {
                        match Waiter::enter(entry.fd, sock) {
                            Some((waiter, fd)) => {
                                kernel.push(pollfd { fd, events: libc::POLLIN, revents: 0 });
                                waiters.push(waiter);
                            }
                            None => is_ready = true,
                        }
                    }
                }
                is_ready |= waited.readiness(fds).ready != 0;
                is_ready |= waited.readiness(fds).kernel_events != kernel[waited.at].events;
            }
            Stage::Tcp => {}
        }
    }
    let mut slept = 0;
    if !is_ready {
        let mut undo = || {
            kernel_calls.clear();
            waiters.clear();
            armed.iter().for_each(|waited| disarm(&waited.sock));
            // SAFETY: the program jumps out of the functions that have these uses.
            waited.iter().for_each(|waited| unsafe { waited.sock.release_left(references) });
        };
        slept = jumps::wait(&mut undo, || sleep_in_kernel(kernel, until_ns, mask));
    }
    let error = errno::get();
    drop(kernel_calls);
    for (waiter, doorbell) in waiters.iter().zip(&kernel[fds.len()..]) {
        if doorbell.revents != 0 {
            waiter.was_woken();
        }
    }
    for waited in armed {
        disarm(&waited.sock);
    }
    if slept < 0 && error == libc::EINVAL && !waiters.is_empty() {
        // With the doorbells they are more than RLIMIT_NOFILE: the program's alone may be as many.
        waited.iter().for_each(|waited| waited.sock.demote(farcall_stats::PathReason::NoResources));
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
    unsafe { libc_next::ppoll(kernel.as_mut_ptr(), kernel.len() as _, rest, mask) }
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
