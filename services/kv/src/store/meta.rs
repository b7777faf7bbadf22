//! Lookups with side effects, for memcached's meta commands: vivify, recache, stale marks.

use super::error::StoreError;
use super::item::state;
use super::partition::{Found, Partition, seconds};
use super::read::Item;
use super::write::{Outcome, Put};
use crate::key::Key;

/// Options of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetaGet {
    /// Does not count as a use.
    pub keep_order: bool,
    /// New expiration time in milliseconds of the partition's clock (0: never).
    pub touch_ms: Option<u64>,
    /// On a miss, stores an empty item with this expiration time and instructs the caller to fill it.
    pub vivify_ms: Option<u64>,
    /// Instructs one caller to refresh an item that expires before this time in milliseconds of the partition's clock.
    pub recache_before_ms: Option<u64>,
    /// `true` if `recache_before_ms` is compared with the new expiration time instead of the previous one.
    pub touches_first: bool,
}

/// A live item with its metadata before this lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaItem<'a> {
    /// The item itself.
    pub item: Item<'a>,
    /// `true` if this lookup created it.
    pub created: bool,
    /// Previous expiration time in milliseconds of the partition's clock; 0: never.
    pub old_expires_ms: u64,
    /// Time of the last use in seconds of the partition's clock.
    pub accessed_s: u32,
    /// `true` if it was read since it was stored.
    pub fetched: bool,
    /// `true` if it is marked stale.
    pub stale: bool,
    /// `true` if this caller must recache it.
    pub won: bool,
    /// `true` if another caller was instructed to recache it.
    pub win_sent: bool,
    /// Memory of the item in bytes.
    pub size_bytes: usize,
}

/// Options of marking an item stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Invalidation {
    /// Marks the item only if it has exactly this version.
    pub compare_cas: Option<u64>,
    /// New expiration time in milliseconds of the partition's clock (0: never).
    pub touch_ms: Option<u64>,
}

impl Partition {
    /// Looks up `key` with side effects; returns `None` on a miss without vivification.
    ///
    /// # Errors
    /// [`StoreError`] if the empty item could not be stored.
    pub fn meta_get(
        &mut self,
        key: &Key<'_>,
        wish: &MetaGet,
        now_ms: u64,
    ) -> Result<Option<MetaItem<'_>>, StoreError> {
        let Some(mut found) = self.find(key, now_ms) else {
            let created = self.vivify(key, wish, now_ms)?;
            let counter = match (&created, wish.touch_ms) {
                (None, _) => &mut self.stats.get_misses,
                (Some(_), None) => &mut self.stats.get_hits,
                (Some(_), Some(_)) => &mut self.stats.touch_hits,
            };
            *counter += 1;
            return Ok(created.map(|found| {
                if !wish.keep_order {
                    self.note_use(&found, now_ms);
                }
                self.vivified(&found, now_ms)
            }));
        };
        let before = found.header;
        let win_sent = before.state & state::WIN_SENT != 0;
        let stale = before.state & state::STALE != 0;
        let compared_ms = wish.touch_ms.filter(|_| wish.touches_first).unwrap_or(before.expires_ms);
        let short =
            wish.recache_before_ms.is_some_and(|before_ms| compared_ms != 0 && compared_ms < before_ms);
        let won = (stale || short) && !win_sent;
        if won {
            found.header.state |= state::WIN_SENT;
        }
        match wish.touch_ms {
            Some(touch_ms) => {
                self.stats.touch_hits += 1;
                found.header.expires_ms = touch_ms;
            }
            None => self.stats.get_hits += 1,
        }
        if found.header != before {
            let expires_ms = found.header.expires_ms;
            self.set_expiry(&mut found, expires_ms);
        }
        if !wish.keep_order {
            self.note_use(&found, now_ms);
        }
        Ok(Some(MetaItem {
            created: false,
            old_expires_ms: before.expires_ms,
            accessed_s: before.accessed_s,
            fetched: before.state & state::FETCHED != 0,
            stale,
            won,
            win_sent,
            size_bytes: self.size_bytes(&found),
            item: self.lend(&found),
        }))
    }

    /// Returns the metadata of the item under `key` without side effects or statistics.
    pub fn inspect(&mut self, key: &Key<'_>, now_ms: u64) -> Option<MetaItem<'_>> {
        let found = self.find(key, now_ms)?;
        let has = |bit| found.header.state & bit != 0;
        Some(MetaItem {
            created: false,
            old_expires_ms: found.header.expires_ms,
            accessed_s: found.header.accessed_s,
            fetched: has(state::FETCHED),
            stale: has(state::STALE),
            won: false,
            win_sent: has(state::WIN_SENT),
            size_bytes: self.size_bytes(&found),
            item: self.lend(&found),
        })
    }

    fn vivify(&mut self, key: &Key<'_>, wish: &MetaGet, now_ms: u64) -> Result<Option<Found>, StoreError> {
        let Some(expires_ms) = wish.vivify_ms else { return Ok(None) };
        self.insert(key, &Put { expires_ms, ..Put::default() }, now_ms)?;
        // With a negative or past time the empty item has expired already, as with any PUT.
        let Some(mut found) = self.find(key, now_ms) else { return Ok(None) };
        found.header.state |= state::WIN_SENT;
        found.header.write(&mut self.arena, found.at);
        Ok(Some(found))
    }

    fn vivified(&self, found: &Found, now_ms: u64) -> MetaItem<'_> {
        MetaItem {
            created: true,
            old_expires_ms: 0,
            accessed_s: seconds(now_ms),
            fetched: false,
            stale: false,
            won: true,
            win_sent: false,
            size_bytes: self.size_bytes(found),
            item: self.lend(found),
        }
    }

    /// Stores a value under a key that has no item, without counting it as a put. Returns the version, or `None` if
    /// there is an item.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub fn create(&mut self, key: &Key<'_>, put: &Put<'_>, now_ms: u64) -> Result<Option<u64>, StoreError> {
        if self.find(key, now_ms).is_some() {
            return Ok(None);
        }
        self.insert(key, put, now_ms).map(Some)
    }

    /// Marks the item under `key` stale: it is still served, but one caller is instructed to recache it.
    ///
    /// Returns [`Outcome::Stored`] with the new version, [`Outcome::Exists`] or [`Outcome::NotFound`].
    pub fn invalidate(&mut self, key: &Key<'_>, how: &Invalidation, now_ms: u64) -> Outcome {
        let Some(mut found) = self.find(key, now_ms) else {
            self.stats.delete_misses += 1;
            return Outcome::NotFound;
        };
        if how.compare_cas.is_some_and(|wanted| wanted != found.header.cas) {
            self.stats.delete_misses += 1;
            return Outcome::Exists;
        }
        let cas = self.take_cas();
        found.header.cas = cas;
        found.header.state = (found.header.state | state::STALE) & !state::WIN_SENT;
        let expires_ms = how.touch_ms.unwrap_or(found.header.expires_ms);
        self.set_expiry(&mut found, expires_ms);
        Outcome::Stored { cas }
    }

    fn size_bytes(&self, found: &Found) -> usize {
        self.arena.block(found.at).granules as usize * super::arena::GRANULE_BYTES
    }
}
