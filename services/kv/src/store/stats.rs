//! Counters of a partition.

use std::ops::AddAssign;

/// Declares the counters of [`Stats`] and the identical ones that a server publishes.
macro_rules! stats {
    ($($(#[doc = $doc:literal])* $field:ident,)*) => {
        /// Counters and sizes of one partition, or the sum over several.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])* pub $field: u64,)*
        }

        impl Stats {
            /// Number of counters.
            pub const FIELDS: usize = [$(stringify!($field),)*].len();

            /// Returns all counters in the fixed order of the STATS reply.
            pub fn to_array(&self) -> [u64; Self::FIELDS] {
                [$(self.$field,)*]
            }

            /// Returns the counters from the result of [`Stats::to_array`].
            pub fn from_array(values: [u64; Self::FIELDS]) -> Self {
                let [$($field,)*] = values;
                Self { $($field,)* }
            }
        }

        #[cfg(feature = "server")]
        farcall_stats::counters! {
            /// The counters of a partition in shared memory, for `farcall stats PID`.
            pub(crate) struct StoreCounters { $($(#[doc = $doc])* $field,)* }
        }

        #[cfg(feature = "server")]
        impl StoreCounters {
            pub(crate) fn publish(&self, stats: &Stats) {
                $(self.$field.set(stats.$field);)*
            }
        }
    };
}

stats! {
    /// Lookups that found a live item.
    get_hits,
    /// Lookups that found none.
    get_misses,
    /// Values stored by any kind of put.
    puts,
    /// Puts refused by their condition (add, replace, append, prepend on the wrong state).
    puts_not_stored,
    /// Deletes that found a live item.
    delete_hits,
    /// Deletes that found none.
    delete_misses,
    /// Compare-and-swaps that matched.
    cas_hits,
    /// Compare-and-swaps on a key that was not there.
    cas_misses,
    /// Compare-and-swaps that found another version.
    cas_mismatches,
    /// Touches (and gets that touch) that found a live item.
    touch_hits,
    /// Touches that found none.
    touch_misses,
    /// Increments of a live item's number.
    incr_hits,
    /// Increments that found no live item.
    incr_misses,
    /// Decrements of a live item's number.
    decr_hits,
    /// Decrements that found no live item.
    decr_misses,
    /// Live items evicted because the bucket of a new key was full.
    evictions_bucket_full,
    /// Live items evicted because the memory was full.
    evictions_memory_full,
    /// Items reclaimed after their time or after a flush.
    expired,
    /// Writes refused because the value was too large.
    too_large,
    /// Writes refused for lack of memory.
    out_of_memory,
    /// Flushes.
    flushes,
    /// Items now in memory, expired ones not yet reclaimed included.
    items,
    /// Items ever stored under a new key.
    items_total,
    /// Memory of these items, in bytes: headers, keys, values and rounding.
    item_bytes,
    /// All memory reserved, in bytes: never more than `limit_bytes`.
    reserved_bytes,
    /// The configured limit, in bytes.
    limit_bytes,
    /// Slots of the index.
    slots,
}

impl Stats {
    /// Returns the current sizes with all counters zero.
    #[must_use]
    pub fn reset(&self) -> Stats {
        Stats {
            items: self.items,
            item_bytes: self.item_bytes,
            reserved_bytes: self.reserved_bytes,
            limit_bytes: self.limit_bytes,
            slots: self.slots,
            ..Stats::default()
        }
    }

    /// Returns the number of live items evicted for any reason.
    pub fn evictions(&self) -> u64 {
        self.evictions_bucket_full + self.evictions_memory_full
    }

    /// Returns the number of values sent to be stored, with any result except too large.
    pub fn puts_tried(&self) -> u64 {
        self.puts + self.puts_not_stored + self.cas_misses + self.cas_mismatches
    }

    /// Returns all counters by name, with memcached's names where memcached has the same counter.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 31] {
        [
            ("cmd_get", self.get_hits + self.get_misses),
            ("cmd_set", self.puts_tried()),
            ("cmd_flush", self.flushes),
            ("cmd_touch", self.touch_hits + self.touch_misses),
            ("get_hits", self.get_hits),
            ("get_misses", self.get_misses),
            ("get_expired", self.expired),
            ("delete_misses", self.delete_misses),
            ("delete_hits", self.delete_hits),
            ("incr_misses", self.incr_misses),
            ("incr_hits", self.incr_hits),
            ("decr_misses", self.decr_misses),
            ("decr_hits", self.decr_hits),
            ("cas_misses", self.cas_misses),
            ("cas_hits", self.cas_hits),
            ("cas_badval", self.cas_mismatches),
            ("touch_hits", self.touch_hits),
            ("touch_misses", self.touch_misses),
            ("store_too_large", self.too_large),
            ("store_no_memory", self.out_of_memory),
            ("puts_not_stored", self.puts_not_stored),
            ("limit_maxbytes", self.limit_bytes),
            ("reserved_bytes", self.reserved_bytes),
            ("bytes", self.item_bytes),
            ("curr_items", self.items),
            ("total_items", self.items_total),
            ("hash_slots", self.slots),
            ("evictions", self.evictions()),
            ("evictions_bucket_full", self.evictions_bucket_full),
            ("evictions_memory_full", self.evictions_memory_full),
            ("reclaimed", self.expired),
        ]
    }
}

impl AddAssign<&Stats> for Stats {
    /// Adds the statistics of another partition; the sum over all is that of the complete store.
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
