//! The wall clock, in addition to the clock of a partition's times.

/// Offset of the wall clock from the partition's clock. The wall clock may be set; items do not expire by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallClock {
    ahead_ms: i64,
}

impl WallClock {
    /// Creates the clock that shows `unix_ms` when the partition's clock shows `partition_ms`.
    pub(super) fn new(unix_ms: u64, partition_ms: u64) -> Self {
        Self { ahead_ms: unix_ms.wrapping_sub(partition_ms) as i64 }
    }

    /// Converts a Unix time to the partition's clock, both in milliseconds; at least 1.
    pub fn to_partition_ms(self, unix_ms: u64) -> u64 {
        unix_ms.saturating_sub_signed(self.ahead_ms).max(1)
    }

    /// Converts a time of the partition's clock to Unix time, both in milliseconds.
    pub fn to_unix_ms(self, partition_ms: u64) -> u64 {
        partition_ms.saturating_add_signed(self.ahead_ms)
    }
}
