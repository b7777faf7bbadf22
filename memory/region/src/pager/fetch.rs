//! Fetching pages from memory nodes.

use farcall_memory::{IoError, PAGE_BYTES, Work};
use farcall_verbs::Nanos;

use super::{ABSENT, FETCHING, Pager, Purpose, Waiting};

/// Reciprocal of the share of local memory that all fetches in flight may take when pages are read ahead or hinted.
const AHEAD_SHARE: usize = 4;

/// Adjacent pages that are read by one request.
pub(super) struct Fetch {
    pub count: u32,
    /// Faults on these pages: page, and the time when the fault was read.
    pub faults: Vec<(u32, Nanos)>,
}

impl Pager {
    /// Requests absent pages. The caller has made space for them.
    pub(super) fn fetch(&mut self, first: u32, count: u32, since: Option<Nanos>) {
        (first..first + count).for_each(|page| self.set(page, FETCHING));
        self.fetching += count as usize;
        let faults = since.map(|since| (first, since)).into_iter().collect();
        self.fetches.insert(first, Fetch { count, faults });
        self.submit(Purpose::Fetch, first, Work::Read { len_bytes: count as usize * PAGE_BYTES });
    }

    /// Requests up to `wanted` pages for which no thread waits yet, as far as they are absent and there is space.
    /// Returns their number.
    pub(super) fn fetch_ahead(&mut self, first: u32, wanted: u32) -> u32 {
        let is_absent = |page: &u32| self.states.get(*page as usize) == Some(&ABSENT);
        let count = (first..).take(wanted as usize).take_while(is_absent).count();
        let has_room = self.memory.has_room(count)
            && self.snapshot.is_none()
            && self.fetching + count <= self.limits.resident / AHEAD_SHARE
            && count > 0
            && self.free_space(count);
        if !has_room {
            return 0;
        }
        self.counts.read_ahead += count as u64;
        self.fetch(first, count as u32, None);
        count as u32
    }

    /// Handles the completion of a fetch.
    pub(super) fn fetched(&mut self, first: u32, result: Result<Vec<u8>, IoError>) {
        let Some(Fetch { count, faults }) = self.fetches.remove(&first) else { return };
        self.fetching -= count as usize;
        match result {
            Ok(bytes) => {
                self.save_fetched(first, &bytes);
                self.install(first, &bytes);
                faults.into_iter().for_each(|(_, since)| self.record_resolved(since));
            }
            Err(_) if count == 1 && !faults.is_empty() => {
                self.poison(first);
                faults.into_iter().for_each(|(_, since)| self.record_resolved(since));
            }
            // One of the pages cannot be read, possibly one that no thread waits for: request the awaited pages one by
            // one.
            Err(_) => {
                (first..first + count).for_each(|page| self.set(page, ABSENT));
                self.waiting.extend(faults.into_iter().map(|(page, since)| Waiting {
                    page,
                    is_protected: false,
                    since,
                    has_waited: true,
                }));
            }
        }
    }
}
