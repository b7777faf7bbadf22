//! The wall clock, beside the clock that a partition's times are of.

use super::partition::Partition;

/// How far the wall clock is ahead of the partition's clock. People set the one; nothing expires by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallClock {
    ahead_ms: i64,
}

impl WallClock {
    /// The time of the partition's clock at a Unix time, both in milliseconds; at least 1.
    pub fn to_partition_ms(self, unix_ms: u64) -> u64 {
        unix_ms.saturating_sub_signed(self.ahead_ms).max(1)
    }

    /// The Unix time at a time of the partition's clock, both in milliseconds.
    pub fn to_unix_ms(self, partition_ms: u64) -> u64 {
        partition_ms.saturating_add_signed(self.ahead_ms)
    }
}

impl Partition {
    /// The wall clock as it was last set; until then, the partition's clock tells Unix time.
    pub fn wall(&self) -> WallClock {
        self.wall
    }

    /// Tells what the wall clock shows now. Expiries given as Unix times are converted by it when they arrive.
    pub fn set_wall(&mut self, unix_ms: u64, now_ms: u64) {
        self.wall = WallClock { ahead_ms: unix_ms.wrapping_sub(now_ms) as i64 };
    }
}
