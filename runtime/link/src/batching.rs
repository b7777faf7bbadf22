//! The batching axis: which messages are sent together, and when.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How messages are combined before they are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Batching {
    /// Each message is posted at once.
    None,
    /// Several calls in one message (RF-RPC, section 4).
    Calls(BatchConfig),
}

/// Number of calls in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BatchSizing {
    /// A fixed number of calls.
    Fixed(u16),
    /// As many calls as the latency target allows (RF-RPC, section 4.2).
    Automatic {
        /// Latency target in microseconds.
        latency_max_us: u32,
        /// Percentage of the calls that may take longer than the target.
        tolerance_percent: u8,
    },
}

impl BatchSizing {
    /// Returns the smallest number of calls that makes a batch full.
    pub fn least(self) -> u32 {
        match self {
            Self::Fixed(size) => size.into(),
            Self::Automatic { .. } => 1,
        }
    }
}

impl fmt::Display for BatchSizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "batches of {size}"),
            Self::Automatic { latency_max_us, tolerance_percent } => {
                write!(f, "batches for {} % in {latency_max_us} us", 100 - tolerance_percent)
            }
        }
    }
}

/// Conditions on which a batch is sent. The first one that holds sends it, as does a flush or a wait of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchConfig {
    /// Number of calls (N).
    pub size: BatchSizing,
    /// Number of bytes (L), headers included. A call that is longer is sent in a batch of its own.
    pub bytes_max: u32,
    /// Time since the first call of the batch was added (T), in microseconds.
    pub wait_us: u32,
}

impl Default for BatchConfig {
    /// 16 calls, and the paper's values of L and T: 2,048 bytes, 5 ms.
    fn default() -> Self {
        Self { size: BatchSizing::Fixed(16), bytes_max: 2_048, wait_us: 5_000 }
    }
}

impl BatchConfig {
    /// Maximum number of calls in a batch: the upper bound of the range in RF-RPC, section 4.2.
    pub const CALLS_MAX: u16 = 128;

    /// Returns a configuration for batches of `size` calls.
    pub fn fixed(size: u16) -> Self {
        Self::default().size(BatchSizing::Fixed(size))
    }

    /// Returns a configuration for the largest batches with which 95 % of the calls take at most `latency_max_us`.
    pub fn automatic(latency_max_us: u32) -> Self {
        Self::default().size(BatchSizing::Automatic { latency_max_us, tolerance_percent: 5 })
    }

    /// Sets [`BatchConfig::size`].
    #[must_use]
    pub const fn size(mut self, size: BatchSizing) -> Self {
        self.size = size;
        self
    }

    /// Sets [`BatchConfig::bytes_max`].
    #[must_use]
    pub const fn bytes_max(mut self, bytes_max: u32) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets [`BatchConfig::wait_us`].
    #[must_use]
    pub const fn wait_us(mut self, wait_us: u32) -> Self {
        self.wait_us = wait_us;
        self
    }

    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// Returns a description of the number that is out of range, with the range.
    pub fn check(&self) -> Result<(), String> {
        match self.size {
            BatchSizing::Fixed(size) if !(1..=Self::CALLS_MAX).contains(&size) => {
                Err(format!("batches of {size} calls: 1 to {}", Self::CALLS_MAX))
            }
            BatchSizing::Automatic { tolerance_percent: percent @ 101.., .. } => {
                Err(format!("a tolerance of {percent} %: 0 to 100"))
            }
            _ => Ok(()),
        }
    }
}
