//! Functions that wait for events.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, time_t, timespec, timeval};

use super::export;
use super::opening::open_fd;
use crate::sock::KernelWait;
use crate::{clock, confined, epoll, errno, fork, libc_next, pointers, poll};

/// Returns the time at which a wait ends; `None` without a timeout.
///
/// # Errors
/// Returns EINVAL if the value is not a valid time.
pub(super) fn after(timeout: Option<timespec>) -> Result<Option<u64>, c_int> {
    let Some(timeout) = timeout else { return Ok(None) };
    match (u64::try_from(timeout.tv_sec), u64::try_from(timeout.tv_nsec)) {
        (Ok(s), Ok(ns)) if ns < 1_000_000_000 => {
            Ok(Some(clock::now_ns().saturating_add(s.saturating_mul(1_000_000_000)).saturating_add(ns)))
        }
        _ => Err(libc::EINVAL),
    }
}

/// Returns the program's value, which consists of numbers: a timespec, for example; `None` if it passes none.
///
/// # Errors
/// Returns EFAULT if it is not there.
pub(super) fn value_at<T: Copy>(at: *const T) -> Result<Option<T>, c_int> {
    match at {
        _ if at.is_null() => Ok(None),
        // SAFETY: it can be read, and consists of numbers.
        _ if pointers::can_read(at, 1) => Ok(Some(unsafe { at.read_unaligned() })),
        _ => Err(libc::EFAULT),
    }
}

/// Returns whether the sets that the program passes can be written for `count` descriptors.
fn are_writable(sets: [*mut fd_set; 3], count: c_int) -> bool {
    let words = usize::try_from(count).unwrap_or(0).div_ceil(64);
    sets.iter().all(|set| set.is_null() || pointers::can_write(set.cast::<u64>(), words))
}

/// Implementation of poll for a set of descriptors.
enum PollBy<'a> {
    /// The kernel's; this thread is counted as a receiver of each connection.
    Kernel { _waits: Vec<KernelWait> },
    /// The library's.
    Library(&'a mut [pollfd]),
}

/// Selects the poll that serves the program's descriptors.
///
/// # Safety
/// As poll's manual page says.
unsafe fn poll_by<'a>(fds: *mut pollfd, count: nfds_t) -> PollBy<'a> {
    if count == 0 || count > 1 << 20 || !pointers::can_write(fds, count as usize) {
        return PollBy::Kernel { _waits: Vec::new() };
    }
    // SAFETY: `can_write` has found `count` entries at `fds`, which no other thread uses until the call returns:
    // poll(2) writes them.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    poll::kernel_waits(fds).map_or(PollBy::Library(fds), |_waits| PollBy::Kernel { _waits })
}

/// Reports descriptors that can be read from what was left in rings when the program restricted its system calls;
/// `None` if the kernel knows everything.
///
/// # Safety
/// As poll's manual page says.
unsafe fn left_in_rings(fds: *mut pollfd, count: nfds_t) -> Option<c_int> {
    if fds.is_null() || count == 0 || count > 1 << 20 {
        return None;
    }
    // SAFETY: the caller passes `count` entries, as poll(2) requires.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    Some(poll::poll_when_confined(fds)).filter(|found| *found > 0)
}

/// Reports the members of an object that can be read from what was left in rings when the program restricted its system
/// calls; `None` if the kernel knows everything, or the program restricts none.
///
/// # Safety
/// As epoll_wait's manual page says.
unsafe fn readable_when_confined(epfd: c_int, events: *mut epoll_event, max: c_int) -> Option<c_int> {
    if max <= 0 || events.is_null() {
        return None;
    }
    // SAFETY: the caller's array of `max` events, which no other thread uses until the call returns. Each value of its
    // bytes is a valid event.
    let into = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
    Some(epoll::readable_members(epfd, into) as c_int).filter(|found| *found > 0)
}

export! {
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        let fd = open_fd(|| unsafe { libc_next::epoll_create(size) });
        fork::prepare();
        epoll::created(fd);
        fd
    }

    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        let fd = open_fd(|| unsafe { libc_next::epoll_create1(flags) });
        fork::prepare();
        epoll::created(fd);
        fd
    }

    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: `event` is null or the program's; `epoll::control` checks that it can be read before it does so.
        unsafe { epoll::control(epfd, operation, fd, event) }
    }

    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int {
        // SAFETY: `events` has space for `max` events until the call returns, as epoll_wait(2) requires; `epoll::wait`
        // checks those that it writes, and the kernel those that the kernel writes. `mask` is passed to the kernel alone.
        unsafe {
            if confined::is_confined() {
                let found = readable_when_confined(epfd, events, max);
                return found.unwrap_or_else(|| libc_next::epoll_wait(epfd, events, max, timeout_ms));
            }
            epoll::wait(epfd, events, max, epoll::Timeout::from_ms(timeout_ms), ptr::null())
        }
    }

    fn epoll_pwait(
        epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: `events` has space for `max` events until the call returns, as epoll_wait(2) requires; `epoll::wait`
        // checks those that it writes, and the kernel those that the kernel writes. `mask` is passed to the kernel alone.
        unsafe {
            if confined::is_confined() {
                let found = readable_when_confined(epfd, events, max);
                return found.unwrap_or_else(|| libc_next::epoll_pwait(epfd, events, max, timeout_ms, mask));
            }
            epoll::wait(epfd, events, max, epoll::Timeout::from_ms(timeout_ms), mask)
        }
    }

    fn epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if confined::is_confined() {
            // SAFETY: `events` has space for `max` events, as epoll_pwait2(2) requires.
            let found = unsafe { readable_when_confined(epfd, events, max) };
            // SAFETY: the kernel checks the pointers, which are the program's, unchanged.
            return found.unwrap_or_else(|| unsafe { libc_next::epoll_pwait2(epfd, events, max, timeout, mask) });
        }
        match value_at(timeout).and_then(after) {
            // SAFETY: `events` has space for `max` events until the call returns, as epoll_wait(2) requires;
            // `epoll::wait` checks those that it writes, and the kernel those that the kernel writes. `mask` is passed
            // to the kernel alone.
            Ok(until_ns) => unsafe { epoll::wait(epfd, events, max, epoll::Timeout::until(until_ns), mask) },
            Err(number) => errno::fail(number),
        }
    }

    fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        // SAFETY: `poll_by` checks that `count` entries at `fds` can be written before the library uses them;
        // otherwise the kernel gets them, which checks them. When the program is confined, `fds` has `count` entries,
        // as poll(2) requires.
        unsafe {
            if confined::is_confined() {
                return left_in_rings(fds, count).unwrap_or_else(|| libc_next::poll(fds, count, timeout_ms));
            }
            match poll_by(fds, count) {
                PollBy::Kernel { _waits } => libc_next::poll(fds, count, timeout_ms),
                PollBy::Library(fds) => poll::poll(fds, clock::after_ms(timeout_ms), ptr::null()),
            }
        }
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: usize) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: `fds` has space for `count` entries, by the comparison above; `poll` takes the same arguments.
        unsafe { poll(fds, count, timeout_ms) }
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: `poll_by` checks that `count` entries at `fds` can be written before the library uses them;
        // otherwise the kernel gets them, which checks them. When the program is confined, `fds` has `count` entries,
        // as poll(2) requires.
        unsafe {
            if confined::is_confined() {
                return left_in_rings(fds, count).unwrap_or_else(|| libc_next::ppoll(fds, count, timeout, mask));
            }
            let fds = match poll_by(fds, count) {
                PollBy::Kernel { _waits } => return libc_next::ppoll(fds, count, timeout, mask),
                PollBy::Library(fds) => fds,
            };
            match value_at(timeout).and_then(after) {
                Ok(until_ns) => poll::poll(fds, until_ns, mask),
                Err(number) => errno::fail(number),
            }
        }
    }

    fn __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize,
    ) -> c_int {
        if room / size_of::<pollfd>() < count as usize {
            std::process::abort();
        }
        // SAFETY: `fds` has space for `count` entries, by the comparison above; `ppoll` takes the same arguments.
        unsafe { ppoll(fds, count, timeout, mask) }
    }

    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        // SAFETY: `are_writable` has found that the sets can be written for `count` descriptors, or they are null;
        // otherwise the kernel gets them. The time is read by `value_at` where it can be, and no other thread uses sets
        // or time until the call returns.
        unsafe {
            if !are_writable([read, write, other], count) {
                return libc_next::select(count, read, write, other, timeout);
            }
            let mut sets = Sets::of(count, read, write, other);
            if confined::is_confined() {
                if poll::poll_when_confined(&mut sets.fds) > 0 {
                    return sets.report();
                }
                return libc_next::select(count, read, write, other, timeout);
            }
            if let Some(_waits) = poll::kernel_waits(&sets.fds) {
                return libc_next::select(count, read, write, other, timeout);
            }
            let time = match value_at(timeout) {
                Ok(time) => time,
                Err(number) => return errno::fail(number),
            };
            let requested = time.map(|timeout| timespec {
                tv_sec: timeout.tv_sec + timeout.tv_usec as time_t / 1_000_000,
                tv_nsec: timeout.tv_usec % 1_000_000 * 1_000,
            });
            let until_ns = match after(requested) {
                Ok(until_ns) => until_ns,
                Err(number) => return errno::fail(number),
            };
            let found = sets.wait(until_ns, ptr::null());
            // Linux stores the time that is left, if it can.
            if let Some(until_ns) = until_ns
                && pointers::can_write(timeout, 1)
            {
                let left_us = until_ns.saturating_sub(clock::now_ns()) / 1_000;
                let (tv_sec, tv_usec) = ((left_us / 1_000_000) as _, (left_us % 1_000_000) as _);
                timeout.write_unaligned(timeval { tv_sec, tv_usec });
            }
            found
        }
    }

    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: `are_writable` has found that the sets can be written for `count` descriptors, or they are null;
        // otherwise the kernel gets them. The time is read by `value_at` where it can be, and no other thread uses sets
        // or time until the call returns.
        unsafe {
            if !are_writable([read, write, other], count) {
                return libc_next::pselect(count, read, write, other, timeout, mask);
            }
            let mut sets = Sets::of(count, read, write, other);
            if confined::is_confined() {
                if poll::poll_when_confined(&mut sets.fds) > 0 {
                    return sets.report();
                }
                return libc_next::pselect(count, read, write, other, timeout, mask);
            }
            if let Some(_waits) = poll::kernel_waits(&sets.fds) {
                return libc_next::pselect(count, read, write, other, timeout, mask);
            }
            match value_at(timeout).and_then(after) {
                Ok(until_ns) => sets.wait(until_ns, mask),
                Err(number) => errno::fail(number),
            }
        }
    }
}

/// The three sets of select, and what poll calls them.
struct Sets {
    count: usize,
    sets: [(*mut c_void, i16, i16); 3],
    fds: Vec<pollfd>,
}

const READ: i16 = libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLIN | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLWRBAND | libc::POLLWRNORM | libc::POLLOUT | libc::POLLERR;

/// Returns the word and the mask of a descriptor's bit in a set, which may be longer than `fd_set`.
///
/// # Safety
/// The set has it.
unsafe fn word(set: *mut c_void, fd: usize) -> (*mut u64, u64) {
    // SAFETY: the set has the bit of `fd`, by this function's contract, and so the word with it.
    (unsafe { set.cast::<u64>().add(fd / 64) }, 1 << (fd % 64))
}

impl Sets {
    /// # Safety
    /// As select's manual page says.
    unsafe fn of(count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        // The events that each set requests of poll, and the results by which a bit of it is set.
        let sets: [(*mut c_void, i16, i16); 3] = [
            (read.cast(), libc::POLLIN, READ),
            (write.cast(), libc::POLLOUT, WRITE),
            (other.cast(), libc::POLLPRI, libc::POLLPRI),
        ];
        let events = |fd: usize| {
            sets.iter().filter(|(set, ..)| !set.is_null()).fold(0, |events, (set, asked, _)| {
                // SAFETY: each set that is not null has at least `count` bits, as select(2) requires of the program.
                let is_set = unsafe {
                    let (word, bit) = word(*set, fd);
                    word.read_unaligned() & bit != 0
                };
                if is_set { events | asked } else { events }
            })
        };
        let entry = |fd: usize| pollfd { fd: fd as c_int, events: events(fd), revents: 0 };
        Self { count, sets, fds: (0..count).map(entry).filter(|entry| entry.events != 0).collect() }
    }

    /// # Safety
    /// The contract of [`Sets::of`].
    unsafe fn wait(&mut self, until_ns: Option<u64>, mask: *const sigset_t) -> c_int {
        if poll::poll(&mut self.fds, until_ns, mask) < 0 {
            return -1;
        }
        if self.fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return errno::fail(libc::EBADF);
        }
        // SAFETY: this function's contract.
        unsafe { self.report() }
    }

    /// Sets the bits of what is ready. Returns their number.
    ///
    /// # Safety
    /// The contract of [`Sets::of`].
    unsafe fn report(&mut self) -> c_int {
        let mut found = 0;
        for (set, asked, answers) in self.sets.iter().filter(|(set, ..)| !set.is_null()) {
            for at in 0..self.count.div_ceil(64) {
                // SAFETY: each set that is not null has at least `count` bits, in whole words.
                unsafe { set.cast::<u64>().add(at).write_unaligned(0) };
            }
            for entry in
                self.fds.iter().filter(|entry| entry.events & asked != 0 && entry.revents & answers != 0)
            {
                // SAFETY: it was set before.
                unsafe {
                    let (word, bit) = word(*set, entry.fd as usize);
                    word.write_unaligned(word.read_unaligned() | bit);
                }
                found += 1;
            }
        }
        found
    }
}
