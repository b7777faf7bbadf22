//! Errors of reading statistics.

use std::io;

use thiserror::Error;

/// Error of reading statistics.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// There are no statistics of the process.
    #[error("process {pid} has no statistics: it is not a Farcall process of this user, or older than a day")]
    NotFound {
        /// The process.
        pid: u32,
    },
    /// The statistics were written by another version, or are corrupt.
    #[error("process {pid}: no statistics of version 2: {why}")]
    Malformed {
        /// The process.
        pid: u32,
        /// Description of the defect.
        why: &'static str,
    },
    /// A system call failed.
    #[error("{operation} failed (statistics need System V shared memory)")]
    System {
        /// The failed operation.
        operation: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
