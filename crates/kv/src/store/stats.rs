//! What a partition counts.

use std::ops::AddAssign;

/// Counters and sizes of one partition, or the sum over several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lookups that found a live item.
    pub get_hits: u64,
    /// Lookups that found none.
    pub get_misses: u64,
    /// Values stored by any kind of put.
    pub puts: u64,
    /// Puts refused by their condition (add, replace, append, prepend on the wrong state).
    pub puts_not_stored: u64,
    /// Deletes that found a live item.
    pub delete_hits: u64,
    /// Deletes that found none.
    pub delete_misses: u64,
    /// Compare-and-swaps that matched.
    pub cas_hits: u64,
    /// Compare-and-swaps on a key that was not there.
    pub cas_misses: u64,
    /// Compare-and-swaps that found another version.
    pub cas_mismatches: u64,
    /// Touches (and gets that touch) that found a live item.
    pub touch_hits: u64,
    /// Touches that found none.
    pub touch_misses: u64,
    /// Increments and decrements that found a live item.
    pub counter_hits: u64,
    /// Increments and decrements that found none.
    pub counter_misses: u64,
    /// Live items that gave way to others.
    pub evictions: Evictions,
    /// Items reclaimed after their time or after a flush.
    pub expired: u64,
    /// Writes refused because the value was too large.
    pub too_large: u64,
    /// Writes refused for lack of memory.
    pub out_of_memory: u64,
    /// Flushes.
    pub flushes: u64,
    /// Items now in memory, expired ones not yet reclaimed included.
    pub items: u64,
    /// Items ever stored under a new key.
    pub items_total: u64,
    /// Memory of these items, in bytes: headers, keys, values and rounding.
    pub item_bytes: u64,
    /// All memory reserved, in bytes: never more than `limit_bytes`.
    pub reserved_bytes: u64,
    /// The configured limit, in bytes.
    pub limit_bytes: u64,
    /// Slots of the index.
    pub slots: u64,
}

/// Live items that gave way, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evictions {
    /// The bucket of a new key was full.
    pub bucket_full: u64,
    /// The memory was full.
    pub memory_full: u64,
}

impl Evictions {
    /// All evictions.
    pub fn total(&self) -> u64 {
        self.bucket_full + self.memory_full
    }
}

impl Stats {
    /// How many counters there are.
    pub const FIELDS: usize = 25;

    /// All counters in a fixed order: the order of the STATS reply.
    pub fn to_array(&self) -> [u64; Self::FIELDS] {
        [
            self.get_hits,
            self.get_misses,
            self.puts,
            self.puts_not_stored,
            self.delete_hits,
            self.delete_misses,
            self.cas_hits,
            self.cas_misses,
            self.cas_mismatches,
            self.touch_hits,
            self.touch_misses,
            self.counter_hits,
            self.counter_misses,
            self.evictions.bucket_full,
            self.evictions.memory_full,
            self.expired,
            self.too_large,
            self.out_of_memory,
            self.flushes,
            self.items,
            self.items_total,
            self.item_bytes,
            self.reserved_bytes,
            self.limit_bytes,
            self.slots,
        ]
    }

    /// The counters back from [`Stats::to_array`].
    pub fn from_array(values: [u64; Self::FIELDS]) -> Self {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Stats {
            get_hits: next(),
            get_misses: next(),
            puts: next(),
            puts_not_stored: next(),
            delete_hits: next(),
            delete_misses: next(),
            cas_hits: next(),
            cas_misses: next(),
            cas_mismatches: next(),
            touch_hits: next(),
            touch_misses: next(),
            counter_hits: next(),
            counter_misses: next(),
            evictions: Evictions { bucket_full: next(), memory_full: next() },
            expired: next(),
            too_large: next(),
            out_of_memory: next(),
            flushes: next(),
            items: next(),
            items_total: next(),
            item_bytes: next(),
            reserved_bytes: next(),
            limit_bytes: next(),
            slots: next(),
        }
    }
}

impl AddAssign<&Stats> for Stats {
    /// Sums partition by partition: the statistics of a whole store.
    fn add_assign(&mut self, other: &Stats) {
        let (own, other) = (self.to_array(), other.to_array());
        *self = Stats::from_array(std::array::from_fn(|field| own[field].wrapping_add(other[field])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_array_keeps_every_counter_in_its_place() {
        let numbered: [u64; Stats::FIELDS] = std::array::from_fn(|field| field as u64 + 1);
        assert_eq!(Stats::from_array(numbered).to_array(), numbered);
        let mut sum = Stats::from_array(numbered);
        sum += &Stats::from_array(numbered);
        assert_eq!(sum.to_array(), numbered.map(|value| 2 * value));
    }
}
