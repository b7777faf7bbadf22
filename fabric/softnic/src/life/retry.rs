//! What the service thread continues from time to time, for owners who sleep or do something else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farcall_shm::{Mutex, fence};

use super::service::Service;

/// How often it looks again: from, to, doubling.
const RETRY_FIRST: Duration = Duration::from_millis(1);
pub(super) const RETRY_LAST: Duration = Duration::from_millis(20);

/// Something that waits, and that the service thread can continue.
pub(crate) trait Retry: Send + Sync {
    /// Whether it is in the service thread's list; changed under the list's lock.
    fn is_listed(&self) -> &AtomicBool;

    /// Whether it still must be continued.
    fn is_waiting(&self) -> bool;

    /// A number that changes whenever its owner continues it: it is left alone as long as that happens. `None`: only
    /// the service thread can do what is to be done.
    fn owner_visits(&self) -> Option<u32> {
        None
    }

    /// How often it has begun to wait: what waits anew is not looked at as seldom as what waited before.
    fn waits_begun(&self) -> u64 {
        0
    }

    /// Continues it; called by the service thread, which must not wait.
    fn resume(&self);
}

#[derive(Default)]
pub(super) struct RetryList(Mutex<List>);

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// When the service thread will look at it, unless it is woken; `None`: not at all.
    planned: Option<Instant>,
}

struct Entry {
    what: Weak<dyn Retry>,
    at: Instant,
    every: Duration,
    /// `waits_begun` at the last look.
    begun: u64,
    /// `owner_visits` at the last look; `None`: it is continued at the next in any case.
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
    /// Whether the service thread must be woken to look at `at`.
    fn plan(&mut self, at: Instant) -> bool {
        let is_late = self.planned.is_none_or(|planned| planned > at);
        if is_late {
            self.planned = Some(at);
        }
        is_late
    }

    /// What was taken off the list and began to wait meanwhile goes back: its owner may have found it listed.
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
    /// Everything is due now.
    pub(super) fn hurry(&self) {
        let now = Instant::now();
        self.0.lock().entries.iter_mut().for_each(|entry| (entry.at, entry.seen) = (now, None));
    }

    /// Continues what is due and has no owner at it; returns how long until the next.
    pub(super) fn resume_due(&self) -> Option<Duration> {
        let now = Instant::now();
        let (mut due, mut unlisted) = (Vec::new(), Vec::new());
        let mut list = self.0.lock();
        list.entries.retain_mut(|entry| {
            // What is due soon is due now, and from then on together with the rest.
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
            // Who waits again and again, and sees to it himself, stays.
            if !owner_came {
                what.is_listed().store(false, Ordering::Relaxed);
                unlisted.push(what);
            }
            owner_came
        });
        list.relist(unlisted, now);
        let next = list.entries.iter().map(|entry| entry.at).min();
        list.planned = next;
        // Not under the lock: what is continued may have to wait again.
        drop(list);
        for what in due {
            what.resume();
        }
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

impl Service {
    /// Continues `what` from time to time, beginning soon, until it no longer waits. Costs next to nothing if that is
    /// so already; returns whether it was not. Call after it began to wait.
    pub(crate) fn retry<W: Retry + 'static>(&self, what: &W, weak: &Weak<W>) -> bool {
        // Whoever takes it off the list looks once more whether it waits.
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

    /// As [`Service::retry`], but beginning now, also if it waits already.
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
