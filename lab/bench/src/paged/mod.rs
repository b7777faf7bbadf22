//! Programs whose memory does not fit: databases and machine learning with a part of their memory resident, and the
//! rest in the memory of another process, on disk, or compressed.
//!
//! - `Backing`: location of the rest; `Resident`: share of a program's memory that is resident;
//! - `DatabaseTask`: Redis and SQLite under mixes of reads and updates;
//! - [`swap_faults`]: latency of a page fault from a swap area;
//! - `LearningTask`: four algorithms in Python. Their results must not depend on the share of resident memory.
//!
//! The peak memory of a program is measured first, with all of its memory resident.

mod confinement;
mod databases;
mod learning;
mod local_swap;
mod redis;
mod script;
pub mod swap_faults;

pub(crate) use databases::{Database, DatabaseFigures, DatabaseTask, Databases, Mix};
pub(crate) use learning::{Algorithm, Learning, LearningTask};

use crate::experiments::ExperimentError;
use std::fmt;

/// Location of the pages that are not resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// None: all pages are resident.
    None,
    /// The complete path of `farcall page` except for the nodes: the pager stores the pages itself, behind an empty
    /// loop device on FUSE.
    Bare,
    /// `farcall page`, to one memory node.
    Remote,
    /// A swap file.
    Disk,
    /// Compressed memory.
    Zram,
}

names! {
    Backing {
        None => "all in local memory", Bare => "empty loop on FUSE", Remote => "farcall page",
        Disk => "swap file", Zram => "zram",
    }
}

/// Share of a program's memory that is resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) backing: Backing,
    pub(crate) percent: u8,
}

/// Reason why this machine does not support the confinement, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotHere(String);

/// Separates a configuration that this machine does not support from other errors.
pub(crate) fn supported<T>(
    measured: Result<T, ExperimentError>,
) -> Result<Result<T, NotHere>, ExperimentError> {
    measured.map(Ok).or_else(|error| error.downcast().map(|why| Err(*why)))
}

impl Resident {
    const ALL: Self = Self { backing: Backing::None, percent: 100 };
    /// Compared configurations: all of the memory, half and a quarter of it. With a limit of all of it, nothing is
    /// swapped.
    pub(crate) const COMPARED: [Self; 9] = [
        Self::ALL,
        Self { backing: Backing::Remote, percent: 100 },
        Self { backing: Backing::Remote, percent: 50 },
        Self { backing: Backing::Disk, percent: 50 },
        Self { backing: Backing::Zram, percent: 50 },
        Self { backing: Backing::Bare, percent: 25 },
        Self { backing: Backing::Remote, percent: 25 },
        Self { backing: Backing::Disk, percent: 25 },
        Self { backing: Backing::Zram, percent: 25 },
    ];

    const fn bytes_of(self, peak_bytes: u64) -> u64 {
        peak_bytes / 100 * self.percent as u64
    }
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} % resident", self.backing.name(), self.percent)
    }
}
