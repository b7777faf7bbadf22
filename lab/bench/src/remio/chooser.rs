//! Choice of the page and the direction of each request.

use super::pages::Pages;
use super::task::{Places, Workload};
use farcall_link::SplitMix64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Six pages of which two are adjacent.
const TWO_OF_SIX: [u64; 6] = [0, 10, 20, 21, 30, 40];
/// Distance between two groups of six pages.
const SIX_SPAN: u64 = 50;

/// Sequence of one thread's requests.
pub(super) struct Chooser<'a> {
    workload: Workload,
    pages: Pages,
    rng: SplitMix64,
    /// Position of all threads together.
    cursor: &'a AtomicU64,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(workload: Workload, pages: Pages, seed: u64, cursor: &'a AtomicU64) -> Self {
        Self { workload, pages, rng: SplitMix64::new(SplitMix64::mix(seed)), cursor }
    }

    pub(super) fn page(&mut self) -> u64 {
        let Pages { count, .. } = self.pages;
        match self.workload.places {
            Places::Adjacent => self.next() % count,
            Places::Random => 2 * self.rng.below(count / 2),
            Places::TwoOfSix => {
                // Groups of six are used one after another: a group that occurred twice in a burst would overlap itself.
                let next = self.next();
                next / 6 % (count / SIX_SPAN) * SIX_SPAN + TWO_OF_SIX[next as usize % 6]
            }
        }
    }

    fn next(&self) -> u64 {
        self.cursor.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn reads(&mut self) -> bool {
        self.rng.below(100) < self.workload.reads_percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(workload: Workload, count: usize) -> Vec<u64> {
        let cursor = AtomicU64::new(0);
        let mut chooser = Chooser::new(workload, Pages::of(4096, 1 << 20, 50, 0), 3, &cursor);
        (0..count).map(|_| chooser.page()).collect()
    }

    #[test]
    fn places_are_as_adjacent_as_their_names_say() {
        assert_eq!(chosen(Workload::ADJACENT_READS, 3), [0, 1, 2]);
        let random = chosen(Workload::RANDOM_READS, 500);
        assert!(random.iter().all(|page| page % 2 == 0 && *page < 256));
        let mut sixes = chosen(Workload::TABLE_1, 30);
        assert_eq!(sixes[6..12], [50, 60, 70, 71, 80, 90]);
        sixes.sort_unstable();
        let gaps = sixes.windows(2).map(|pair| pair[1] - pair[0]);
        assert_eq!((gaps.clone().filter(|gap| *gap == 1).count(), gaps.min()), (5, Some(1)), "none twice");
    }
}
