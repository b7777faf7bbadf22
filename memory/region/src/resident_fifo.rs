//! FIFO of resident pages: the page that has been resident for the longest time is evicted first.

use std::collections::{HashMap, VecDeque};

/// A FIFO queue of pages that supports removal from the middle.
#[derive(Default)]
pub(crate) struct ResidentFifo {
    queue: VecDeque<u32>,
    /// Number of stale queue entries of pages that were removed from the middle. The oldest entries of a page are the
    /// stale ones.
    stale: HashMap<u32, u32>,
    stale_count: usize,
}

impl ResidentFifo {
    pub fn push(&mut self, page: u32) {
        self.queue.push_back(page);
    }

    /// Removes and returns the oldest page.
    pub fn pop(&mut self) -> Option<u32> {
        loop {
            let page = self.queue.pop_front()?;
            if !self.is_stale(page) {
                return Some(page);
            }
        }
    }

    /// Returns whether an entry of `page` that was just removed from the front is stale, and if so uncounts it.
    fn is_stale(&mut self, page: u32) -> bool {
        let Some(count) = self.stale.get_mut(&page) else { return false };
        *count -= 1;
        if *count == 0 {
            self.stale.remove(&page);
        }
        self.stale_count -= 1;
        true
    }

    /// Removes a page that is in the queue.
    pub fn remove(&mut self, page: u32) {
        *self.stale.entry(page).or_default() += 1;
        self.stale_count += 1;
        if self.stale_count > 64 && self.stale_count > self.queue.len() / 2 {
            let queue = std::mem::take(&mut self.queue);
            let left = queue.into_iter().filter(|page| !self.is_stale(*page)).collect();
            self.queue = left;
        }
    }

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.queue.len() - self.stale_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_link::SplitMix64;

    #[test]
    fn evicts_in_fifo_order_after_removals() {
        let seed = SplitMix64::new(std::process::id().into()).next_u64();
        println!("seed {seed}");
        let (mut rng, mut fifo, mut model) =
            (SplitMix64::new(seed), ResidentFifo::default(), VecDeque::new());
        for _ in 0..20_000 {
            let page = rng.below(200) as u32;
            match (rng.below(4), model.iter().position(|other| *other == page)) {
                (0, _) => assert_eq!(fifo.pop(), model.pop_front()),
                (1, Some(at)) => {
                    model.remove(at);
                    fifo.remove(page);
                }
                (_, None) => {
                    model.push_back(page);
                    fifo.push(page);
                }
                _ => {}
            }
            assert_eq!(fifo.len(), model.len());
            assert!(fifo.queue.len() <= 3 * 200 + 64, "entries of no account pile up");
        }
    }
}
