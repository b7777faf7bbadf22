//! Buffer for events that the kernel reports to the library.
//!
//! The kernel also reports events of the library's own (doorbells, wakers). They must not appear in the program's
//! array, to which the kernel writes no more than the events that it returns.

use std::ffi::c_int;
use std::ops::Index;

use libc::{epoll_event, sigset_t};

use crate::libc_next;

/// Minimum length of the buffer in events: members may be added while a thread sleeps.
const LEN_MIN: usize = 64;

/// Returns the number of events that a wait for up to `max` events can use if the object has `members` members.
pub(super) fn useful_capacity(max: usize, members: usize) -> usize {
    // A member has two descriptors, and the object has a waker.
    max.min(LEN_MIN.max(2 * members + 1))
}

/// Events that the kernel has reported to an epoll object. A thread that sleeps has the buffer for itself.
#[derive(Default)]
pub(super) struct Reported(Vec<epoll_event>);

impl Reported {
    /// Returns the buffer, with space for the events of `members` members and their doorbells, but for no more than
    /// `capacity` events.
    pub(super) fn take(&mut self, capacity: usize, members: usize) -> Vec<epoll_event> {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.resize(useful_capacity(capacity, members), epoll_event { events: 0, u64: 0 });
        buffer
    }

    /// Stores a buffer that [`Reported::take`] returned.
    pub(super) fn put(&mut self, buffer: Vec<epoll_event>) {
        self.0 = buffer;
    }

    /// Queries the kernel for events, without waiting. Returns the result of epoll_pwait(2), and whether the kernel may
    /// have more events.
    pub(super) fn query(
        &mut self,
        epfd: c_int,
        capacity: usize,
        members: usize,
        mask: *const sigset_t,
    ) -> (c_int, bool) {
        let mut buffer = self.take(capacity, members);
        // SAFETY: the kernel writes at most as many events as the buffer has; the mask is null or the program's, which
        // the kernel checks.
        let found =
            unsafe { libc_next::epoll_pwait(epfd, buffer.as_mut_ptr(), buffer.len() as c_int, 0, mask) };
        let is_full = found == buffer.len() as c_int;
        self.put(buffer);
        (found, is_full)
    }
}

impl Index<usize> for Reported {
    type Output = epoll_event;

    fn index(&self, at: usize) -> &epoll_event {
        &self.0[at]
    }
}
