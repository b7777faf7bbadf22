//! Changes of all partitions.

use super::text::Exptime;
use crate::store::Partition;

/// A change that a command makes in every partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Makes all items unreachable after this delay.
    FlushAll(Exptime),
    /// Starts or stops counting commands by the prefix of their keys.
    CountPrefixes(bool),
    /// Resets all counters to zero.
    ResetStats,
    /// Limits the memory of all partitions together.
    LimitMemory {
        /// The limit in bytes.
        limit_bytes: u64,
    },
}

impl Change {
    /// Makes the change in one partition.
    pub(crate) fn apply(self, partition: &mut Partition, now_ms: u64) {
        match self {
            Change::FlushAll(delay) => {
                partition.flush_all(delay.to_flush_ms(now_ms, partition.wall()), now_ms);
            }
            Change::CountPrefixes(counting) => partition.prefixes.count(counting),
            Change::ResetStats => partition.reset_stats(),
            Change::LimitMemory { limit_bytes } => {
                partition.limit_memory(share_bytes(limit_bytes, partition));
            }
        }
    }

    /// Returns `reply`, or an error if the change is not possible. The result is the same in all partitions.
    pub(crate) fn reply_or_error(self, reply: &'static [u8], partition: &Partition) -> &'static [u8] {
        match self {
            Change::LimitMemory { limit_bytes }
                if !reply.is_empty() && !partition.can_limit_memory(share_bytes(limit_bytes, partition)) =>
            {
                b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"
            }
            _ => reply,
        }
    }
}

/// Returns one partition's share of the memory limit.
fn share_bytes(limit_bytes: u64, partition: &Partition) -> usize {
    (limit_bytes / u64::from(partition.config().partitions)) as usize
}
