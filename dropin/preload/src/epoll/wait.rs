//! Waiting: by looking at hot members, then asleep in the kernel.

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, sigset_t};

use super::get;
use super::members::State;
use crate::spin::Spin;
use crate::{clock, errno, real};

/// Other descriptors are looked at so often while connections keep a thread busy.
const KERNEL_PERIOD_NS: u64 = 10_000;
/// And at the latest after so many reports.
const KERNEL_TURNS: u32 = 16;

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
