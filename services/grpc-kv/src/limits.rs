//! Limits of single requests, of clients, and of the store.

use std::time::Duration;

/// Limits of a store. Each is checked before memory is allocated for what it bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Maximum length of a key in bytes; at most [`Self::KEY_BYTES_MOST`].
    pub key_bytes_max: usize,
    /// Maximum length of a value in bytes.
    pub value_bytes_max: usize,
    /// Maximum number of changes in a batch.
    pub batch_changes_max: usize,
    /// Maximum total length of keys and values in a batch, in bytes.
    pub batch_bytes_max: usize,
    /// Maximum number of records in a page.
    pub page_records_max: usize,
    /// Maximum total length of keys and values in a page, in bytes; the last record may exceed it.
    pub page_bytes_max: usize,
    /// Maximum number of snapshots, including those of iterators.
    pub snapshots_max: usize,
    /// Maximum lifetime of a snapshot. While it exists, no record version that it contains can be removed from the
    /// disk.
    pub snapshot_age_max: Duration,
    /// Maximum total length of keys and values in writes that wait for the disk, in bytes. Further writes are
    /// rejected.
    pub waiting_bytes_max: usize,
}

impl StoreLimits {
    /// Maximum length of a key in the LSM tree, in bytes.
    pub const KEY_BYTES_MOST: usize = u16::MAX as usize;
}

impl Default for StoreLimits {
    /// Default limits: every request and every response fits in a message of gRPC's usual limit, 4 MiB.
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
