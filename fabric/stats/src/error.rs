//! Why statistics cannot be read.

use std::io;

use thiserror::Error;

/// Why statistics cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// Nothing of the process.
    #[error("process {pid} has no statistics: it is not a Farcall process of this user, or older than a day")]
    NotFound {
        /// Which process.
        pid: u32,
    },
    /// What there is was written by another version, or garbled.
    #[error("process {pid}: no statistics of version 2: {why}")]
    Malformed {
        /// Which process.
        pid: u32,
        /// What is wrong with them.
        why: &'static str,
    },
    /// The system refused something.
    #[error("{operation}: {source} (statistics need System V shared memory)")]
    System {
        /// What it was asked for.
        operation: &'static str,
        /// Its answer.
        source: io::Error,
    },
}
