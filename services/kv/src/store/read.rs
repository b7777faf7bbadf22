//! Lookups.

use super::item;
use super::partition::{Found, Partition, seconds};
use crate::key::Key;

/// A live item, borrowed until the next operation on its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The stored bytes.
    pub value: &'a [u8],
    /// Flags for use by the client, stored with the value.
    pub flags: u32,
    /// The version: unique in the partition, new at every change of the value, never reused after a restart
    /// (as long as the clock does not run backwards).
    pub cas: u64,
    /// Expiration time in milliseconds of the partition's clock; 0: never.
    pub expires_ms: u64,
}

impl Partition {
    /// Returns the item under `key`. Counts as a use.
    #[inline]
    pub fn get(&mut self, key: &Key<'_>, now_ms: u64) -> Option<Item<'_>> {
        let Some(found) = self.find(key, now_ms) else {
            self.stats.get_misses += 1;
            return None;
        };
        self.stats.get_hits += 1;
        self.note_use(&found, now_ms);
        Some(self.lend(&found))
    }

    /// Returns the item under `key`, without counting as a use and without statistics.
    pub fn peek(&mut self, key: &Key<'_>, now_ms: u64) -> Option<Item<'_>> {
        let found = self.find(key, now_ms)?;
        Some(self.lend(&found))
    }

    /// Returns an upper bound of the length of all values stored so far.
    pub fn longest_value_bytes(&self) -> usize {
        self.longest_value_bytes
    }

    /// Sets the expiration time of the item under `key` (0: never). Returns whether it exists. Its version is
    /// unchanged.
    pub fn touch(&mut self, key: &Key<'_>, expires_ms: u64, now_ms: u64) -> bool {
        let found = self.find_to_touch(key, expires_ms, now_ms);
        found.is_some()
    }

    /// Sets the expiration time of the item under `key` (0: never) as part of another change; does not count as a
    /// touch.
    pub fn set_time(&mut self, key: &Key<'_>, expires_ms: u64, now_ms: u64) {
        if let Some(mut found) = self.find(key, now_ms) {
            self.set_expiry(&mut found, expires_ms);
        }
    }

    /// Combines [`Partition::touch`] and [`Partition::get`]: returns the item, which now expires at `expires_ms`.
    /// Counts only as a touch.
    pub fn get_and_touch(&mut self, key: &Key<'_>, expires_ms: u64, now_ms: u64) -> Option<Item<'_>> {
        let found = self.find_to_touch(key, expires_ms, now_ms)?;
        Some(self.lend(&found))
    }

    fn find_to_touch(&mut self, key: &Key<'_>, expires_ms: u64, now_ms: u64) -> Option<Found> {
        let Some(mut found) = self.find(key, now_ms) else {
            self.stats.touch_misses += 1;
            return None;
        };
        self.stats.touch_hits += 1;
        self.set_expiry(&mut found, expires_ms);
        self.note_use(&found, now_ms);
        Some(found)
    }

    pub(super) fn set_expiry(&mut self, found: &mut Found, expires_ms: u64) {
        found.header.expires_ms = expires_ms;
        found.header.write(&mut self.arena, found.at);
        self.index[found.bucket as usize].note_expiry(expires_ms);
    }

    #[inline]
    pub(super) fn note_use(&mut self, found: &Found, now_ms: u64) {
        self.index[found.bucket as usize].bump(found.slot);
        found.header.note_use(&mut self.arena, found.at, seconds(now_ms));
    }

    /// Like [`Partition::note_use`], for a command that does not read the value.
    pub(super) fn note_interest(&mut self, found: &Found, now_ms: u64) {
        self.index[found.bucket as usize].bump(found.slot);
        let state = found.header.state | super::item::state::REFERENCED;
        let header = super::item::Header { accessed_s: seconds(now_ms), state, ..found.header };
        header.write(&mut self.arena, found.at);
    }

    #[inline]
    pub(super) fn lend(&self, found: &Found) -> Item<'_> {
        let header = &found.header;
        Item {
            value: &self.arena.bytes()[item::value(found.at, header)],
            flags: header.flags,
            cas: header.cas,
            expires_ms: header.expires_ms,
        }
    }
}
