//! Reasons for which the store refuses a write. A refused write has changed nothing.

use thiserror::Error;

/// A write that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The value is longer than the partition allows.
    #[error(
        "the value has {len_bytes} bytes; this store takes at most {max_bytes}: split it or raise the limit"
    )]
    ValueTooLarge {
        /// The length of the refused value.
        len_bytes: usize,
        /// Maximum length of a value in this partition.
        max_bytes: usize,
    },
    /// The memory or the key's bucket is full, and eviction is disabled.
    #[error(
        "out of memory: the partition is full and eviction is off; delete items, raise the limit or allow eviction"
    )]
    OutOfMemory,
}

/// An increment or decrement that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CounterError {
    /// The stored value is not a decimal number below 2^64.
    #[error("cannot increment or decrement non-numeric value")]
    NotANumber,
    /// The new number did not fit into the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}
