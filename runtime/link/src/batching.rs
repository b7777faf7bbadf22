//! The axis of batching: which messages travel together, and when they are sent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How messages are put together before they are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Batching {
    /// Each message at once.
    None,
    /// Several calls in one message (RF-RPC, section 4).
    Calls(BatchConfig),
}

/// How many calls a batch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BatchSizing {
    /// So many.
    Fixed(u16),
    /// As many as the latency allows (RF-RPC, section 4.2).
    Automatic {
        /// The latency asked for, in microseconds.
        latency_max_us: u32,
        /// How many of 100 calls may take longer.
        tolerance_percent: u8,
    },
}

impl BatchSizing {
    /// The smallest batch that is full.
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

/// When gathered calls are sent: whatever comes first, or when the client is told to, or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchConfig {
    /// When there are so many (N).
    pub size: BatchSizing,
    /// When they take so many bytes (L), their heads included. A call that takes more alone is sent by itself.
    pub bytes_max: u32,
    /// When the first has waited for so long (T), in microseconds.
    pub wait_us: u32,
}

impl Default for BatchConfig {
    /// 16 calls, and L and T of the paper: 2,048 bytes, 5 ms.
    fn default() -> Self {
        Self { size: BatchSizing::Fixed(16), bytes_max: 2_048, wait_us: 5_000 }
    }
}

impl BatchConfig {
    /// Calls in a batch at most: the range of RF-RPC, section 4.2.
    pub const CALLS_MAX: u16 = 128;

    /// Batches of so many calls.
    pub fn fixed(size: u16) -> Self {
        Self::default().size(BatchSizing::Fixed(size))
    }

    /// Batches as large as lets 95 % of the calls take at most so many microseconds.
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

    /// Whether every number is in its range.
    ///
    /// # Errors
    /// Which is not, and its range.
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
