//! What one request, one client, all clients may take.

use std::time::Duration;

/// Limits of a store. Every one is checked before anything is allocated for what it bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// The longest key; at most [`Self::KEY_BYTES_MOST`].
    pub key_bytes_max: usize,
    /// The longest value.
    pub value_bytes_max: usize,
    /// Changes of a batch.
    pub batch_changes_max: usize,
    /// Keys and values of a batch, together.
    pub batch_bytes_max: usize,
    /// Records of a page.
    pub page_records_max: usize,
    /// Keys and values of a page, together; its last record may exceed it.
    pub page_bytes_max: usize,
    /// Snapshots at once, those of iterators included.
    pub snapshots_max: usize,
    /// How long a snapshot is kept: as long as it is, nothing of what it shows can be removed from the disk.
    pub snapshot_age_max: Duration,
    /// Keys and values of the writes that wait for the disk, together; more of them are refused.
    pub waiting_bytes_max: usize,
}

impl StoreLimits {
    /// What the LSM tree takes.
    pub const KEY_BYTES_MOST: usize = u16::MAX as usize;
}

impl Default for StoreLimits {
    /// Every request and every answer fits into a message of gRPC's usual limit, 4 MiB.
    fn default() -> Self {
        Self {
            key_bytes_max: 1 << 10,
            value_bytes_max: 1 << 20,
            batch_changes_max: 4_096,
            batch_bytes_max: 2 << 20,
            page_records_max: 1_024,
            page_bytes_max: 1 << 20,
            snapshots_max: 256,
            snapshot_age_max: Duration::from_secs(60),
            waiting_bytes_max: 64 << 20,
        }
    }
}
