//! Which page is next, and whether it is read or written.

use super::pages::Pages;
use super::task::{Places, Workload};
use farcall_link::SplitMix64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of six requests: two adjacent pages among others.
const TWO_OF_SIX: [u64; 6] = [0, 10, 20, 21, 30, 40];
/// From one six to the next.
const SIX_SPAN: u64 = 50;

/// One thread's requests.
pub(super) struct Chooser<'a> {
    workload: Workload,
    pages: Pages,
    rng: SplitMix64,
    /// Where all threads together are.
    cursor: &'a AtomicU64,
    asked: usize,
    six: u64,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(workload: Workload, pages: Pages, seed: u64, cursor: &'a AtomicU64) -> Self {
        Self { workload, pages, rng: SplitMix64::new(SplitMix64::mix(seed)), cursor, asked: 0, six: 0 }
    }

    pub(super) fn page(&mut self) -> u64 {
        let Pages { count, .. } = self.pages;
        match self.workload.places {
            Places::Adjacent => self.cursor.fetch_add(1, Ordering::Relaxed) % count,
            Places::Random => 2 * self.rng.below(count / 2),
            Places::TwoOfSix => {
                let at = self.asked % TWO_OF_SIX.len();
                self.asked += 1;
                if at == 0 {
                    self.six = SIX_SPAN * self.rng.below(count / SIX_SPAN);
                }
                self.six + TWO_OF_SIX[at]
            }
        }
    }

    pub(super) fn reads(&mut self) -> bool {
        self.rng.below(100) < self.workload.reads_percent
    }
}
