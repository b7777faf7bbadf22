//! Work that the service thread continues at intervals, for application threads that sleep or do other work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farcall_shm::{Mutex, fence};

use super::service_thread::Service;

/// Shortest and longest interval between attempts; it doubles from one to the other.
const RETRY_FIRST: Duration = Duration::from_millis(1);
pub(super) const RETRY_LAST: Duration = Duration::from_millis(20);

/// Waiting work that the service thread can continue.
pub(crate) trait Retry: Send + Sync {
    /// Returns the flag of membership in the service thread's list; changed under the list's lock.
    fn is_listed(&self) -> &AtomicBool;

    /// Returns whether it must still be continued.
    fn is_waiting(&self) -> bool;

    /// Returns a number that changes whenever the application thread continues the work; the service thread leaves it
    /// alone as long as the number changes. Returns `None` if only the service thread can continue the work.
    fn owner_visits(&self) -> Option<u32> {
        None
    }

    /// Returns the number of waits begun. A new wait starts again with the shortest interval.
    fn waits_begun(&self) -> u64 {
        0
    }

    /// Continues the work. Called by the service thread, which must not block.
    fn resume(&self);
}

#[derive(Default)]
pub(super) struct RetryList(Mutex<List>);

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Time of the service thread's next pass, unless it is woken earlier; `None` if there is none.
    planned: Option<Instant>,
}

struct Entry {
    what: Weak<dyn Retry>,
    at: Instant,
    every: Duration,
    /// Value of `waits_begun` at the last pass.
    begun: u64,
    /// Value of `owner_visits` at the last pass; `None` if the work is continued at the next pass in any case.
    seen: Option<u32>,
}

impl Entry {
    fn new(what: Weak<dyn Retry>, at: Instant, begun: u64, seen: Option<u32>) -> Self {
        Self { what, at, every: RETRY_FIRST, begun, seen }
    }

    fn put_off(&mut self, now: Instant) {
        self.every = (self.every * 2).min(RETRY_LAST);
        self.at = now + self.every;
    }
}

impl List {
    /// Returns whether the service thread must be woken to make a pass at `at`.
    fn plan(&mut self, at: Instant) -> bool {
        let is_late = self.planned.is_none_or(|planned| planned > at);
        if is_late {
            self.planned = Some(at);
        }
        is_late
    }

    /// Adds work again that was removed from the list and began to wait concurrently: its thread may have found it
    /// listed.
    fn relist(&mut self, unlisted: Vec<Arc<dyn Retry>>, now: Instant) {
        if unlisted.is_empty() {
            return;
        }
        fence::heavy();
        for what in unlisted.iter().filter(|what| what.is_waiting()) {
            what.is_listed().store(true, Ordering::Relaxed);
            let (at, seen) = (now + RETRY_FIRST, what.owner_visits());
            self.entries.push(Entry::new(Arc::downgrade(what), at, what.waits_begun(), seen));
        }
    }
}

impl RetryList {
    /// Makes all work due immediately.
    pub(super) fn hurry(&self) {
        let now = Instant::now();
        self.0.lock().entries.iter_mut().for_each(|entry| (entry.at, entry.seen) = (now, None));
    }

    /// Continues work that is due and that no application thread continues. Returns the time until the next pass.
    pub(super) fn resume_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let (mut due, mut unlisted) = (Vec::new(), Vec::new());
        let mut list = self.0.lock();
        list.entries.retain_mut(|entry| {
            // Work that is due soon is handled now, so that later passes handle it together with the rest.
            if entry.at > now + RETRY_FIRST / 2 {
                return true;
            }
            let Some(what) = entry.what.upgrade() else { return false };
            let visits = what.owner_visits();
            let owner_came = entry.seen.is_some() && visits.is_some() && visits != entry.seen;
            entry.seen = visits;
            let begun = std::mem::replace(&mut entry.begun, what.waits_begun());
            if begun != entry.begun && !owner_came {
                entry.every = RETRY_FIRST / 2;
            }
            entry.put_off(now);
            if what.is_waiting() {
                if !owner_came {
                    due.push(what);
                }
                return true;
            }
            // Work that waits repeatedly and that its application thread continues stays listed.
            if !owner_came {
                what.is_listed().store(false, Ordering::Relaxed);
                unlisted.push(what);
            }
            owner_came
        });
        list.relist(unlisted, now);
        let next = list.entries.iter().map(|entry| entry.at).min();
        list.planned = next;
        // Without the lock, because the continued work may have to be listed again.
        drop(list);
        for what in due {
            what.resume();
        }
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

impl Service {
    /// Lists `what` for continuation at intervals, starting soon, until it no longer waits. Costs almost nothing if it
    /// is listed already. Returns whether it was not. Must be called after the wait began.
    pub(crate) fn retry<W: Retry + 'static>(&self, what: &W, weak: &Weak<W>) -> bool {
        // The thread that removes work from the list then checks once more whether it waits.
        fence::light();
        if what.is_listed().load(Ordering::Relaxed) {
            return false;
        }
        let mut list = self.retries.0.lock();
        if what.is_listed().swap(true, Ordering::Relaxed) {
            return false;
        }
        let (at, seen) = (Instant::now() + RETRY_FIRST, what.owner_visits());
        list.entries.push(Entry::new(weak.clone(), at, what.waits_begun(), seen));
        if list.plan(at) {
            self.wake();
        }
        true
    }

    /// Like [`Service::retry`], but due immediately, even if it is listed already.
    pub(crate) fn retry_now<W: Retry + 'static>(&self, what: &W, weak: &Weak<W>) {
        let mut list = self.retries.0.lock();
        let at = Instant::now();
        let begin = Entry::new(weak.clone(), at, what.waits_begun(), None);
        let is_it = |entry: &&mut Entry| entry.what.as_ptr().addr() == weak.as_ptr().addr();
        if !what.is_listed().swap(true, Ordering::Relaxed) {
            list.entries.push(begin);
        } else if let Some(listed) = list.entries.iter_mut().find(is_it) {
            *listed = begin;
        }
        list.planned = Some(at);
        self.wake();
    }
}
