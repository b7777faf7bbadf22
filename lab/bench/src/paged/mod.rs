//! Programs whose memory does not fit: databases and machine learning with a part of their memory resident, and the
//! rest in the memory of another process, on disk, or compressed.
//!
//! - `Backing`: where the rest goes, and `Resident` how much of a program's memory is no rest;
//! - `DatabaseTask`: Redis and SQLite under mixes of reads and updates;
//! - [`swap_faults`]: how long one page takes to come back;
//! - `LearningTask`: four algorithms in Python. What they learn must be the same, whatever was resident.
//!
//! The most memory that a program has is measured first, with all of it resident.

mod confinement;
mod databases;
mod learning;
mod local_swap;
mod redis;
mod script;
pub mod swap_faults;

pub(crate) use databases::{Database, DatabaseTask, Databases, Mix};
pub(crate) use learning::{Algorithm, Learning, LearningTask};

use std::fmt;

/// Where pages go that are not resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// All are resident.
    None,
    /// All of the way of `farcall page`, but the pager keeps pages itself: an empty loop device on FUSE.
    Bare,
    /// `farcall page`, to one memory node.
    Remote,
    /// A swap file.
    Disk,
    /// Compressed memory.
    Zram,
}

/// How much of a program's memory is resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) backing: Backing,
    pub(crate) percent: u8,
}

/// It cannot be confined so on this machine, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotHere(String);

impl Backing {
    /// What a curve is called by it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "all in local memory",
            Self::Bare => "empty loop on FUSE",
            Self::Remote => "farcall page",
            Self::Disk => "swap file",
            Self::Zram => "zram",
        }
    }
}

impl Resident {
    const ALL: Self = Self { backing: Backing::None, percent: 100 };
    /// What is compared: all of the memory, half and a quarter of it. A limit of all of it has nothing to swap.
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
