//! Size of a partition and division of its memory.

use thiserror::Error;

use super::PAGE_BYTES;
use super::arena::{GRANULE_BYTES, GRANULES_MAX};
use super::bucket::Bucket;
use super::item::ITEM_OVERHEAD_BYTES;
use super::partition::Partition;
use crate::key::{HashSeed, KEY_MAX_BYTES, Router};

/// The size and the number of one partition.
#[derive(Debug, Clone)]
pub struct Config {
    /// Maximum memory of the partition in bytes: index, headers, keys, values and its own record.
    pub limit_bytes: usize,
    /// Maximum length of a value in bytes.
    pub value_max_bytes: usize,
    /// Size of the index.
    pub index: IndexSize,
    /// `true` if old items are evicted for new ones. Without eviction a full store refuses writes with
    /// [`super::StoreError::OutOfMemory`] and keeps its items.
    pub evict: bool,
    /// Seed of the key hash; equal in all partitions and clients of a store.
    pub seed: HashSeed,
    /// Number of this partition, below `partitions`.
    pub partition: u32,
    /// Number of partitions of the store.
    pub partitions: u32,
}

/// Choice of the number of buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexSize {
    /// A quarter of the memory limit. With items of 96 bytes the index is a third full when the memory is full.
    Quarter,
    /// Exactly this many buckets of 64 bytes and eight slots.
    Buckets(u32),
}

/// Reasons for which a [`Config`] is invalid.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The limit cannot hold the index and a few of the largest items.
    #[error(
        "a limit of {limit_bytes} bytes is too small for values of {value_max_bytes} bytes: allow at least \
         {needed_bytes} bytes a partition, lower the largest value, or take a smaller index"
    )]
    LimitTooSmall {
        /// The configured limit in bytes.
        limit_bytes: usize,
        /// The configured maximum length of a value in bytes.
        value_max_bytes: usize,
        /// The smallest limit that is valid with the rest of the configuration.
        needed_bytes: usize,
    },
    /// One partition addresses at most 32 GiB of items.
    #[error(
        "a limit of {limit_bytes} bytes is too large for one partition (about 32 GiB): use more partitions"
    )]
    LimitTooLarge {
        /// The configured limit in bytes.
        limit_bytes: usize,
    },
    /// The length of a value is stored in 30 bits.
    #[error(
        "values of {value_max_bytes} bytes are too large: a value has at most {VALUE_MAX_BYTES_CEILING} bytes"
    )]
    ValueMaxTooLarge {
        /// The configured maximum length of a value in bytes.
        value_max_bytes: usize,
    },
    /// The number of the partition is not below the number of partitions.
    #[error("partition {partition} of {partitions} does not exist: numbers start at 0")]
    NoSuchPartition {
        /// The configured number of the partition.
        partition: u32,
        /// The number of partitions.
        partitions: u32,
    },
    /// Mapping the memory failed.
    #[error("mapping {bytes} bytes for the store failed (check the memory and address-space limits)")]
    Map {
        /// Length of the mapping in bytes.
        bytes: usize,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// The memory layout of a valid configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) buckets: u32,
    pub(crate) granules: u32,
}

/// Minimum capacity of the arena in items of the maximum size. With four, room for one can always be freed while
/// another (the value being replaced) stays in place in the middle.
const LARGEST_ITEMS_MIN: usize = 4;

/// Upper bound of the configured maximum length of a value in bytes.
pub const VALUE_MAX_BYTES_CEILING: usize = 1 << 30;

/// Default maximum length of a value in bytes: an item with the longest key then has 1 MiB, as in memcached. Clients
/// rely on the refusal of a value of 1 MiB.
pub const VALUE_MAX_BYTES_DEFAULT: usize = (1 << 20) - KEY_MAX_BYTES - ITEM_OVERHEAD_BYTES;

impl Default for Config {
    /// 64 MiB, values slightly below 1 MiB, eviction enabled, a single partition.
    fn default() -> Self {
        Config {
            limit_bytes: 64 << 20,
            value_max_bytes: VALUE_MAX_BYTES_DEFAULT,
            index: IndexSize::Quarter,
            evict: true,
            seed: HashSeed::default(),
            partition: 0,
            partitions: 1,
        }
    }
}

impl Config {
    /// Returns the router that clients and servers of this store share.
    pub fn router(&self) -> Router {
        Router::new(self.seed, self.partitions)
    }

    /// Validates the configuration and computes the memory layout.
    pub(crate) fn layout(&self) -> Result<Layout, ConfigError> {
        let (partition, partitions) = (self.partition, self.partitions);
        if partition >= partitions {
            return Err(ConfigError::NoSuchPartition { partition, partitions });
        }
        if self.value_max_bytes > VALUE_MAX_BYTES_CEILING {
            return Err(ConfigError::ValueMaxTooLarge { value_max_bytes: self.value_max_bytes });
        }
        let buckets = self.buckets();
        let arena_bytes =
            self.limit_bytes.saturating_sub(self.fixed_bytes(buckets)) / PAGE_BYTES * PAGE_BYTES;
        if arena_bytes < self.arena_min_bytes() {
            return Err(ConfigError::LimitTooSmall {
                limit_bytes: self.limit_bytes,
                value_max_bytes: self.value_max_bytes,
                needed_bytes: self.needed_bytes(),
            });
        }
        let granules =
            u32::try_from(arena_bytes / GRANULE_BYTES).ok().filter(|&granules| granules <= GRANULES_MAX);
        let granules = granules.ok_or(ConfigError::LimitTooLarge { limit_bytes: self.limit_bytes })?;
        Ok(Layout { buckets, granules })
    }

    fn buckets(&self) -> u32 {
        match self.index {
            IndexSize::Buckets(buckets) => buckets.max(1),
            IndexSize::Quarter => {
                u32::try_from(self.limit_bytes / 4 / size_of::<Bucket>()).unwrap_or(u32::MAX).max(1)
            }
        }
    }

    /// Returns the memory outside the arena in bytes.
    pub(super) fn fixed_bytes(&self, buckets: u32) -> usize {
        (buckets as usize * size_of::<Bucket>()).next_multiple_of(PAGE_BYTES) + size_of::<Partition>()
    }

    pub(super) fn arena_min_bytes(&self) -> usize {
        let largest = self.value_max_bytes.saturating_add(KEY_MAX_BYTES + ITEM_OVERHEAD_BYTES);
        largest.saturating_mul(LARGEST_ITEMS_MIN).saturating_add(4 * GRANULE_BYTES)
    }

    fn needed_bytes(&self) -> usize {
        let arena_bytes = self.arena_min_bytes().saturating_add(2 * PAGE_BYTES);
        match self.index {
            IndexSize::Buckets(buckets) => arena_bytes.saturating_add(self.fixed_bytes(buckets)),
            IndexSize::Quarter => (arena_bytes.saturating_add(size_of::<Partition>() + PAGE_BYTES) / 3)
                .saturating_mul(4)
                .saturating_add(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_limit_is_enough_and_one_page_group_less_is_not() {
        for index in [IndexSize::Quarter, IndexSize::Buckets(100)] {
            let config = Config { limit_bytes: 1 << 20, index, ..Config::default() };
            let Err(ConfigError::LimitTooSmall { needed_bytes, .. }) = config.layout() else {
                panic!("1 MiB cannot hold values of 1 MiB")
            };
            let enough = Config { limit_bytes: needed_bytes, ..config.clone() };
            assert!(enough.layout().is_ok(), "{enough:?}");
            let scarce = Config { limit_bytes: needed_bytes - 8 * PAGE_BYTES, ..config };
            assert!(scarce.layout().is_err(), "{scarce:?}");
        }
    }

    #[test]
    fn impossible_configurations_are_refused_by_name() {
        let lost = Config { partition: 2, partitions: 2, ..Config::default() };
        assert!(matches!(lost.layout(), Err(ConfigError::NoSuchPartition { partition: 2, partitions: 2 })));
        let huge = Config { limit_bytes: 1 << 40, ..Config::default() };
        assert!(matches!(huge.layout(), Err(ConfigError::LimitTooLarge { .. })));
        let absurd = Config { value_max_bytes: usize::MAX, ..Config::default() };
        assert!(matches!(absurd.layout(), Err(ConfigError::ValueMaxTooLarge { .. })));
    }
}
