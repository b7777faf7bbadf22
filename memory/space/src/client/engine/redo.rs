//! Redo log of a volume. The content of a page is written to a *slot* in the metadata of each node that has a replica
//! before it is written to the replica in place. If a client exits while it transfers a page in place, that replica is
//! torn. The next client replays the content from the slot of the same node.
//!
//! Invariants:
//! 1. A write in place to an in-sync replica begins when all members have the entry of the content, and the node of
//!    the replica has the content in a slot.
//! 2. The slot is not overwritten until all in-sync replicas of the page have the content.
//!
//! A slot has no header. Content and newest entry of a page belong together if their checksums match. Hence a slot that
//! is torn, or whose page was written again, belongs to no page. The next client regards each page with a matching slot
//! as *pending*: it has the content of the slot, which is written to all in-sync replicas. Most of these pages were
//! complete, and are only read. Slots with zeros are not searched: zeros are known without a slot.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use bytes::Bytes;

use crate::client::PAGE_BYTES;
use crate::client::pages::PageChecksums;
use crate::client::volume_metadata::{Layout, REDO_SLOTS_MAX, Table};

/// Maximum number of writes to the log in flight.
pub(super) const REDO_WRITES_MAX: usize = REDO_SLOTS_MAX as usize;

/// Content of a page that was never written.
pub(super) static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// A page whose content is in the log and possibly not in all in-sync replicas.
struct PendingPage {
    bytes: Bytes,
    /// Slots with the content. Operations write the first one to nodes that lack it.
    slots: Vec<u32>,
}

/// Slots of the redo log. There are none if the address space is not a volume.
#[derive(Default)]
pub(super) struct RedoLog {
    /// Number of users of each slot: operations, pages of runs, and pending pages.
    users: Vec<u32>,
    pending: BTreeMap<u64, PendingPage>,
    /// Operations that wait for a slot.
    waiting: Vec<u32>,
}

impl RedoLog {
    /// Reads the log of an earlier client from the logs of the nodes. They are untrusted input: contents that match no
    /// entry are ignored.
    pub fn read(layout: &Layout, logs: &[Vec<u8>], table: &Table, checksums: &PageChecksums) -> Self {
        let mut log = Self { users: vec![0; layout.redo_slots() as usize], ..Self::default() };
        let mut contents: HashMap<u64, (&[u8], Vec<u32>)> = HashMap::new();
        for (slot, bytes) in logs.iter().flat_map(|log| (0..).zip(layout.redo_slots_in(log))) {
            if *bytes != ZEROS {
                contents.entry(checksums.of_content(bytes)).or_insert((bytes, Vec::new())).1.push(slot);
            }
        }
        for (page, (newest, _)) in table {
            if let Some((bytes, slots)) = contents.get(&PageChecksums::content_of(*page, newest.sum)) {
                log.add_pending(*page, Bytes::copy_from_slice(bytes), slots.clone());
            }
        }
        log
    }

    pub const fn has_slots(&self) -> bool {
        !self.users.is_empty()
    }

    /// Returns whether pages are pending or operations wait for slots.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty() || !self.waiting.is_empty()
    }

    /// Allocates `count` adjacent slots: the first free ones, so that few slots are written in turn.
    pub fn allocate(&mut self, count: usize) -> Option<Range<u32>> {
        let first = self.users.windows(count).position(|users| users.iter().all(|users| *users == 0))?;
        self.users[first..first + count].fill(1);
        Some(first as u32..(first + count) as u32)
    }

    /// Releases slots. Returns the operations that wait for one.
    pub fn release(&mut self, slots: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut is_any_free = false;
        for slot in slots {
            let users = &mut self.users[slot as usize];
            *users -= 1;
            is_any_free |= *users == 0;
        }
        if is_any_free { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }

    /// Records that an operation waits for a slot.
    pub fn wait(&mut self, operation: u32) {
        if !self.waiting.contains(&operation) {
            self.waiting.push(operation);
        }
    }

    /// Records that a page has the content that is in these slots, and that possibly not all in-sync replicas have it.
    pub fn add_pending(&mut self, page: u64, bytes: Bytes, slots: Vec<u32>) {
        slots.iter().for_each(|slot| self.users[*slot as usize] += 1);
        self.pending.insert(page, PendingPage { bytes, slots });
    }

    /// Records that all in-sync replicas of a page have its content. Returns the slots with the content.
    pub fn finish_pending(&mut self, page: u64) -> Vec<u32> {
        self.pending.remove(&page).map_or_else(Vec::new, |pending| pending.slots)
    }

    pub fn is_pending(&self, page: u64) -> bool {
        self.pending.contains_key(&page)
    }

    /// Returns whether one of these pages is pending.
    pub fn has_pending(&self, pages: Range<u64>) -> bool {
        self.pending.range(pages).next().is_some()
    }

    /// Returns the pending pages.
    pub fn pending_pages(&self) -> impl Iterator<Item = u64> {
        self.pending.keys().copied()
    }

    /// Returns the content of a pending page.
    pub fn content(&self, page: u64) -> Option<Bytes> {
        self.pending.get(&page).map(|pending| pending.bytes.clone())
    }

    /// Returns the slot from which the content of a pending page is written to further nodes. It is allocated if there
    /// is none, and `None` if no slot is free.
    pub fn slot_of_pending(&mut self, page: u64) -> Option<u32> {
        let slots = &self.pending.get(&page)?.slots;
        if let Some(slot) = slots.first() {
            return Some(*slot);
        }
        let slot = self.allocate(1)?.start;
        self.pending.get_mut(&page)?.slots.push(slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::client::config::ClientConfig;
    use crate::client::volume_metadata::Entry;

    #[test]
    fn allocates_adjacent_slots_until_all_users_release_them() {
        let mut log = RedoLog { users: vec![0; 4], ..RedoLog::default() };
        assert_eq!((log.allocate(2), log.allocate(3), log.allocate(2)), (Some(0..2), None, Some(2..4)));
        log.add_pending(7, Bytes::from_static(&ZEROS), vec![1]);
        log.wait(5);
        log.wait(5);
        assert_eq!((log.release(1..2), log.allocate(1)), (vec![], None));
        assert_eq!(log.release([0]), [5]);
        assert_eq!((log.slot_of_pending(7), log.is_busy()), (Some(1), true));
        let slots = log.finish_pending(7);
        assert_eq!((log.release(slots), log.is_busy(), log.allocate(2)), (vec![], false, Some(0..2)));
    }

    #[test]
    fn finds_the_newest_contents_in_the_log_of_any_node() {
        let page = PAGE_BYTES as u64;
        let config = ClientConfig { size_bytes: 8 * page, slab_bytes: 8 * page, ..ClientConfig::default() };
        let (layout, checksums) = (Layout::new(&config, 10, 5), PageChecksums::new(3));
        let mut logs = vec![vec![0; (layout.len_bytes() - layout.redo_at()) as usize]; 2];
        let put =
            |log: &mut Vec<u8>, slot: usize, byte: u8| log[slot * PAGE_BYTES..][..PAGE_BYTES].fill(byte);
        put(&mut logs[0], 0, 1);
        put(&mut logs[1], 0, 2);
        put(&mut logs[1], 7, 3);
        // A torn slot.
        logs[0][3 * PAGE_BYTES] = 4;
        let entry = |page: u64, byte: u8, generation: u32| Entry {
            sum: checksums.of(page, &[byte; PAGE_BYTES]),
            generation,
        };
        let table = BTreeMap::from([
            (0, (entry(0, 2, 2), Some(entry(0, 1, 1)))),
            (1, (entry(1, 9, 2), Some(entry(1, 1, 1)))),
            (5, (entry(5, 3, 1), None)),
            (6, (entry(6, 0, 1), None)),
        ]);
        let log = RedoLog::read(&layout, &logs, &table, &checksums);
        assert_eq!(log.pending_pages().collect::<Vec<_>>(), [0, 5]);
        assert_eq!(log.content(0), Some(Bytes::from_static(&[2; PAGE_BYTES])));
        assert_eq!(log.users, [1, 0, 0, 0, 0, 0, 0, 1]);
    }
}
