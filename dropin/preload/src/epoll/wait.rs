//! Waiting: polls hot members, then sleeps in the kernel.

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, sigset_t};

use super::get;
use super::members::State;
use super::reported::useful_capacity;
use crate::spin::SpinPolicy;
use crate::{clock, errno, jumps, libc_next, pointers};

/// Interval between polls of other descriptors while connections occupy a thread, in nanoseconds.
const KERNEL_PERIOD_NS: u64 = 10_000;
/// Maximum number of waits that return events before other descriptors are polled.
const UNPOLLED_WAITS_MAX: u32 = 16;

/// Timeout of a wait.
#[derive(Clone, Copy)]
pub struct Timeout {
    /// In milliseconds, as epoll_wait(2) takes it.
    ms: c_int,
    /// Time at which it ends, in nanoseconds; `None`: never.
    until_ns: Option<u64>,
}

impl Timeout {
    /// Returns the timeout that begins now; a negative number is none.
    pub fn from_ms(ms: c_int) -> Self {
        Self { ms, until_ns: clock::after_ms(ms) }
    }

    pub fn until(until_ns: Option<u64>) -> Self {
        Self { ms: timeout_ms(until_ns), until_ns }
    }
}

/// Executes epoll_pwait(2).
///
/// # Safety
/// As its manual page says.
pub unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Timeout,
    mask: *const sigset_t,
) -> c_int {
    let Timeout { ms: whole_ms, until_ns } = timeout;
    let Some(epoll) = get(epfd).filter(|_| max > 0 && pointers::can_write(events, 1)) else {
        // SAFETY: the program's pointers go to the kernel unchanged, which writes at most `max` events and fails with
        // EFAULT if it cannot.
        return unsafe { libc_next::epoll_pwait(epfd, events, max, whole_ms, mask) };
    };
    let capacity = useful_capacity(max as usize, epoll.0.lock().member_count);
    // The kernel writes as many events as it can before a page that cannot be written.
    let capacity = if pointers::can_write(events, capacity) { capacity } else { 1 };
    // SAFETY: the first `capacity` of the program's `max` events can be written. No other thread uses them until the
    // call returns, because epoll_wait(2) writes them. Each value of their bytes is a valid event.
    let into = unsafe { std::slice::from_raw_parts_mut(events, capacity) };
    let mut spin: Option<SpinPolicy> = None;
    let mut error;
    let mut new_capacity = Some(into.len());
    // No time has passed yet: a wait in an object without moved members reads no clock.
    let mut first_rest_ms = Some(whole_ms);
    let (done, missed) = loop {
        let mut state = epoll.0.lock();
        if let Some(capacity) = new_capacity.take() {
            state.begin_wait(capacity);
        }
        if !state.missed.is_empty() {
            let missed = std::mem::take(&mut state.missed);
            drop(state);
            missed.into_iter().for_each(super::recheck);
            continue;
        }
        if state.is_ordered() {
            state.order_hot();
        } else if state.ring_member_count > 0 {
            first_rest_ms = None;
            match state.poll_rings(epfd, into, until_ns, mask) {
                Polled::Found(found) => {
                    error = errno::get();
                    break (found, std::mem::take(&mut state.missed));
                }
                Polled::Idle => {}
                Polled::Hot => {
                    drop(state);
                    if spin.get_or_insert_with(SpinPolicy::begin).should_spin() {
                        continue;
                    }
                    state = epoll.0.lock();
                    if state.make_cold() {
                        continue;
                    }
                }
            }
        }
        // Members that are queued are in the kernel's list, or their sockets cannot be written.
        let has_queued = state.queued > 0;
        let rest_ms = first_rest_ms.take().unwrap_or_else(|| timeout_ms(until_ns));
        let rest_ms = if has_queued { 0 } else { rest_ms };
        state.sleepers += 1;
        let members = state.member_count;
        let mut reported = state.reported.take(into.len(), members);
        drop(state);
        let (at, kernel_capacity) = (reported.as_mut_ptr(), reported.len() as c_int);
        // SAFETY: the buffer has `kernel_capacity` events, to which the kernel writes no more than these; `mask` is
        // null or the program's, which the kernel checks.
        let sleep = || unsafe { libc_next::epoll_pwait(epfd, at, kernel_capacity, rest_ms, mask) };
        let wake_up = |state: &mut State, reported: &mut Vec<epoll_event>| {
            state.sleepers = state.sleepers.saturating_sub(1);
            state.reported.put(std::mem::take(reported));
        };
        let slept = jumps::wait(&mut || wake_up(&mut epoll.0.lock(), &mut reported), sleep);
        error = errno::get();
        let mut state = epoll.0.lock();
        wake_up(&mut state, &mut reported);
        if let Some(spin) = spin.take() {
            spin.on_success();
        }
        if slept < 0 || (slept == 0 && !has_queued) {
            if state.is_ordered() {
                state.end_ordered_wait(slept);
            } else {
                state.before_return();
            }
            break (slept, std::mem::take(&mut state.missed));
        }
        if state.ring_member_count > 0 {
            state.kernel_polled_ns = clock::now_ns();
        }
        // Another thread may have unmapped the array.
        if !pointers::can_write(events, capacity) {
            error = libc::EFAULT;
            state.before_return();
            break (-1, std::mem::take(&mut state.missed));
        }
        let found = slept as usize;
        if state.is_ordered() {
            let is_full = slept == kernel_capacity;
            let (mut kept, has_restored) = state.translate_in_order(found, into);
            if kept > 0 && (is_full || has_restored) {
                kept = state.fill_in_order(epfd, into, kept);
            } else if kept == 0 && !is_full && !has_restored {
                kept = state.report_unlisted(into);
            }
            if kept > 0 {
                state.end_ordered_wait(kept as c_int);
                break (kept as c_int, std::mem::take(&mut state.missed));
            }
            continue;
        }
        let (kept, has_tags) = state.translate(found, into);
        if kept > 0 {
            // Members reported with them may be their cause, so they are reported by the same wait.
            let found = if has_tags { state.scan_and_report(&mut into[kept..]) } else { 0 };
            state.before_return();
            break ((kept + found) as c_int, std::mem::take(&mut state.missed));
        }
    };
    missed.into_iter().for_each(super::recheck);
    if done > 0
        && let Some(spin) = spin
    {
        spin.on_success();
    }
    if done < 0 {
        errno::set(error);
    }
    done
}

/// Result of a wait that has not slept.
enum Polled {
    /// It ends with this number of events, or with -1.
    Found(c_int),
    /// No event, and members are hot.
    Hot,
    /// No event, and no member is hot.
    Idle,
}

/// Events that the kernel reported.
struct KernelPoll {
    /// Number of the program's events; -1: an error.
    found: c_int,
    /// `true` if there were events of the library as well.
    has_tags: bool,
    /// `true` if the kernel may have more.
    is_full: bool,
}

impl State {
    /// Polls the kernel for events, without waiting.
    fn poll_kernel(&mut self, epfd: c_int, into: &mut [epoll_event], mask: *const sigset_t) -> KernelPoll {
        self.kernel_polled_ns = clock::now_ns();
        let (found, is_full) = self.reported.query(epfd, into.len(), self.member_count, mask);
        if found < 0 {
            return KernelPoll { found, has_tags: false, is_full: false };
        }
        let (kept, has_tags) = self.translate(found as usize, into);
        KernelPoll { found: kept as c_int, has_tags, is_full }
    }

    /// Returns whether the kernel may have ready members that no scan finds, or must be queried in any case.
    fn must_poll_kernel(&self) -> bool {
        (self.member_count > self.hot.len() && !self.checks_all())
            || self.unpolled_waits >= UNPOLLED_WAITS_MAX
    }

    fn scan_and_report(&mut self, into: &mut [epoll_event]) -> usize {
        self.scan();
        self.report_ready(into)
    }

    /// Polls hot members, and other descriptors if they may be ready or are due.
    fn poll_rings(
        &mut self,
        epfd: c_int,
        into: &mut [epoll_event],
        until_ns: Option<u64>,
        mask: *const sigset_t,
    ) -> Polled {
        if self.queued > 0 {
            self.end_order();
        }
        let has_changed = self.scan();
        let is_ready = self.ready_count() > 0;
        let now_ns = clock::now_ns();
        let is_late = until_ns.is_some_and(|until| now_ns >= until);
        let is_due = is_late || has_changed || now_ns.wrapping_sub(self.kernel_polled_ns) > KERNEL_PERIOD_NS;
        if self.ring_member_count > 0 || has_changed {
            let asks = if is_ready { self.must_poll_kernel() } else { is_due };
            let found = if asks { self.collect(epfd, into, mask) } else { self.report_ready(into) as c_int };
            if found != 0 || is_late {
                if found != 0 {
                    self.unpolled_waits = if asks { 0 } else { self.unpolled_waits + 1 };
                }
                // Read by the caller.
                let error = errno::get();
                self.before_return();
                errno::set(error);
                return Polled::Found(found);
            }
        }
        if self.hot.is_empty() { Polled::Idle } else { Polled::Hot }
    }

    /// Reports the events of the kernel and of the members that were found ready; -1 if the kernel's call fails and
    /// none was found.
    ///
    /// A member is not reported before another whose bytes are the cause of its own: members were found ready before
    /// the kernel is polled, so that the kernel has the causes, which are reported first. If there is no capacity for
    /// the members that were found, they are queued behind those that the kernel lists. If the kernel has events, their
    /// own causes may have become ready in the meantime: members are searched again.
    fn collect(&mut self, epfd: c_int, into: &mut [epoll_event], mask: *const sigset_t) -> c_int {
        let ready_count = self.ready_count();
        let (mut kept, mut capacity) = (0, into.len());
        // Number of entries before those of members that have returned to TCP.
        let mut listed_before = 0;
        // Events of the library may use the capacity for those of the program; each of them occurs once.
        while capacity > 0 {
            let mask = if ready_count > 0 || kept > 0 { ptr::null() } else { mask };
            let KernelPoll { found, has_tags, is_full } =
                self.poll_kernel(epfd, &mut into[kept..kept + capacity], mask);
            if found < 0 && ready_count == 0 && kept == 0 {
                return found;
            }
            kept = merge(into, kept, found.max(0) as usize);
            let has_changed = (kept > 0 || has_tags) && self.scan();
            listed_before =
                if has_changed { self.member_count } else { listed_before.saturating_sub(capacity) };
            if !(has_changed || is_full && (has_tags || listed_before > 0)) {
                break;
            }
            // Members that are found now are reported before the others that the kernel lists.
            capacity = (into.len() - kept).saturating_sub(self.ready_count());
        }
        (kept + self.report_ready(&mut into[kept..])) as c_int
    }
}

/// Merges events behind the first `kept` ones into these: the kernel reports a level-triggered member by each call.
/// Returns how many there are.
fn merge(events: &mut [epoll_event], kept: usize, found: usize) -> usize {
    let mut end = kept;
    for at in kept..kept + found {
        let event = events[at];
        let known = events[..kept].iter_mut().find(|known| known.u64 == event.u64);
        if let Some(known) = known {
            known.events |= event.events;
        } else {
            events[end] = event;
            end += 1;
        }
    }
    end
}

fn timeout_ms(until_ns: Option<u64>) -> c_int {
    let Some(until) = until_ns else { return -1 };
    let rest_ns = until.saturating_sub(clock::now_ns());
    c_int::try_from(rest_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}
