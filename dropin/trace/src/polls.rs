//! Empty polls, which are counted rather than traced.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::note;
use crate::target::now_ns;

/// Time of empty polling after which a line is written; the next ones follow after twice the time each.
const FIRST_RECORD_NS: u64 = 1_000_000_000;

/// The number of empty polls of a completion queue since its last completion.
#[derive(Debug, Default)]
pub struct EmptyPolls {
    count: AtomicU64,
    since_ns: AtomicU64,
    next_record_ns: AtomicU64,
}

impl EmptyPolls {
    /// Counts an empty poll. Writes a line from time to time, so that a hanging program that polls can be
    /// distinguished from one that does not.
    pub fn add(&self, cq: u32) {
        let now_ns = now_ns();
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count == 1 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            self.next_record_ns.store(now_ns + FIRST_RECORD_NS, Ordering::Relaxed);
            return;
        }
        let next_ns = self.next_record_ns.load(Ordering::Relaxed);
        if now_ns < next_ns {
            return;
        }
        let for_ns = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed));
        let later_ns = now_ns.saturating_add(for_ns);
        let is_mine =
            self.next_record_ns.compare_exchange(next_ns, later_ns, Ordering::Relaxed, Ordering::Relaxed);
        if is_mine.is_ok() {
            note("empty polls", |line| {
                line.key("cq").number(cq);
                line.key("empty_polls").number(count);
                line.key("for_ms").number(for_ns / 1_000_000);
            });
        }
    }

    /// Returns the number of empty polls and resets it.
    pub fn take(&self) -> u64 {
        self.count.swap(0, Ordering::Relaxed)
    }
}
