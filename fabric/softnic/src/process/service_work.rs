//! Work that the service thread continues at intervals, for application threads that sleep or do other work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farcall_shm::{Mutex, fence};

use super::waker::Waker;

/// Shortest and longest interval between attempts; it doubles from one to the other.
const RESUME_DELAY_MIN: Duration = Duration::from_millis(1);
pub(super) const RESUME_DELAY_MAX: Duration = Duration::from_millis(20);

/// Waiting work that the service thread can continue.
pub(crate) trait ServiceWork: Send + Sync {
    /// Returns the flag of membership in the service thread's list; changed under the list's lock.
    fn is_listed(&self) -> &AtomicBool;

    /// Returns whether it must still be continued.
    fn is_waiting(&self) -> bool;

    /// Returns a number that changes whenever the application thread continues the work; the service thread leaves it
    /// alone as long as the number changes. Returns `None` if only the service thread can continue the work.
    fn app_poll_count(&self) -> Option<u32> {
        None
    }

    /// Returns the number of waits begun. A new wait starts again with the shortest interval.
    fn wait_count(&self) -> u64 {
        0
    }

    /// Continues the work. Called by the service thread, which must not block.
    fn resume(&self);
}

#[derive(Default)]
pub(super) struct ServiceWorkList(Mutex<List>);

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Time of the service thread's next pass, unless it is woken earlier; `None` if there is none.
    next_pass: Option<Instant>,
}

struct Entry {
    work: Weak<dyn ServiceWork>,
    at: Instant,
    interval: Duration,
    /// Value of `wait_count` at the last pass.
    wait_count: u64,
    /// Value of `app_poll_count` at the last pass; `None` if the work is continued at the next pass in any case.
    poll_count: Option<u32>,
}

impl Entry {
    fn new(work: Weak<dyn ServiceWork>, at: Instant, wait_count: u64, poll_count: Option<u32>) -> Self {
        Self { work, at, interval: RESUME_DELAY_MIN, wait_count, poll_count }
    }

    fn postpone(&mut self, now: Instant) {
        self.interval = (self.interval * 2).min(RESUME_DELAY_MAX);
        self.at = now + self.interval;
    }
}

impl List {
    /// Returns whether the service thread must be woken to make a pass at `at`.
    fn reschedule(&mut self, at: Instant) -> bool {
        let is_late = self.next_pass.is_none_or(|next_pass| next_pass > at);
        if is_late {
            self.next_pass = Some(at);
        }
        is_late
    }

    /// Adds work again that was removed from the list and began to wait concurrently: its thread may have found it
    /// listed.
    fn relist(&mut self, unlisted: Vec<Arc<dyn ServiceWork>>, now: Instant) {
        if unlisted.is_empty() {
            return;
        }
        fence::heavy();
        for work in unlisted.iter().filter(|work| work.is_waiting()) {
            work.is_listed().store(true, Ordering::Relaxed);
            let (at, poll_count) = (now + RESUME_DELAY_MIN, work.app_poll_count());
            self.entries.push(Entry::new(Arc::downgrade(work), at, work.wait_count(), poll_count));
        }
    }
}

impl ServiceWorkList {
    /// Makes all work due immediately.
    pub(super) fn expedite_all(&self) {
        let now = Instant::now();
        self.0.lock().entries.iter_mut().for_each(|entry| (entry.at, entry.poll_count) = (now, None));
    }

    /// Continues work that is due and that no application thread continues. Returns the time until the next pass.
    pub(super) fn resume_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let (mut due, mut unlisted) = (Vec::new(), Vec::new());
        let mut list = self.0.lock();
        list.entries.retain_mut(|entry| {
            // Work that is due soon is handled now, so that later passes handle it together with the rest.
            if entry.at > now + RESUME_DELAY_MIN / 2 {
                return true;
            }
            let Some(work) = entry.work.upgrade() else { return false };
            let poll_count = work.app_poll_count();
            let app_polled =
                entry.poll_count.is_some() && poll_count.is_some() && poll_count != entry.poll_count;
            entry.poll_count = poll_count;
            let wait_count = std::mem::replace(&mut entry.wait_count, work.wait_count());
            if wait_count != entry.wait_count && !app_polled {
                entry.interval = RESUME_DELAY_MIN / 2;
            }
            entry.postpone(now);
            if work.is_waiting() {
                if !app_polled {
                    due.push(work);
                }
                return true;
            }
            // Work that waits repeatedly and that its application thread continues stays listed.
            if !app_polled {
                work.is_listed().store(false, Ordering::Relaxed);
                unlisted.push(work);
            }
            app_polled
        });
        list.relist(unlisted, now);
        let next = list.entries.iter().map(|entry| entry.at).min();
        list.next_pass = next;
        // Without the lock, because the continued work may have to be listed again.
        drop(list);
        for work in due {
            work.resume();
        }
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Lists `work` for continuation at intervals, starting soon, until it no longer waits. Costs almost nothing if it
    /// is listed already. Returns whether it was not. Must be called after the wait began. `is_listed` is the work's
    /// flag, and `waker` wakes the service thread.
    pub(super) fn schedule(
        &self,
        is_listed: &AtomicBool,
        work: impl FnOnce() -> Weak<dyn ServiceWork>,
        waker: &Waker,
    ) -> bool {
        // The thread that removes work from the list then checks once more whether it waits.
        fence::light();
        if is_listed.load(Ordering::Relaxed) {
            return false;
        }
        let weak = work();
        let Some(work) = weak.upgrade() else { return false };
        let mut list = self.0.lock();
        if is_listed.swap(true, Ordering::Relaxed) {
            return false;
        }
        let (at, poll_count) = (Instant::now() + RESUME_DELAY_MIN, work.app_poll_count());
        list.entries.push(Entry::new(weak, at, work.wait_count(), poll_count));
        if list.reschedule(at) {
            waker.wake();
        }
        true
    }

    /// Like [`ServiceWorkList::schedule`], but due immediately, even if it is listed already.
    pub(super) fn schedule_now(&self, weak: Weak<dyn ServiceWork>, waker: &Waker) {
        let Some(work) = weak.upgrade() else { return };
        let mut list = self.0.lock();
        let at = Instant::now();
        let entry = Entry::new(weak, at, work.wait_count(), None);
        let is_same = |listed: &&mut Entry| listed.work.as_ptr().addr() == Arc::as_ptr(&work).addr();
        if !work.is_listed().swap(true, Ordering::Relaxed) {
            list.entries.push(entry);
        } else if let Some(listed) = list.entries.iter_mut().find(is_same) {
            *listed = entry;
        }
        list.next_pass = Some(at);
        waker.wake();
    }
}
