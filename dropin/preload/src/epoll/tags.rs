//! Data of the library's events: a tag instead of what the program chose.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::clock;

/// In a tag: it is of a doorbell.
const DOORBELL_TAG: u64 = 1 << 31;
/// Lower half of the tag of an object's waker: that of a doorbell without a descriptor.
const WAKER_TAG: u64 = 0xFFFF_FFFF;

/// Returns the upper half of tags: no pointer, no small number, and not the same in two processes.
fn tag() -> u64 {
    static TAG: AtomicU64 = AtomicU64::new(0);
    let known = TAG.load(Relaxed);
    if known != 0 {
        return known;
    }
    let made =
        (0x4000_0000 | (clock::now_ns() ^ u64::from(std::process::id()).rotate_left(16)) & 0x3FFF_FFFF) << 32;
    TAG.compare_exchange(0, made, Relaxed, Relaxed).map_or_else(|other| other, |_| made)
}

/// Returns whether data are the library's.
pub(super) fn is_tagged(data: u64) -> bool {
    data & !0xFFFF_FFFF == tag()
}

/// Source of an event that the kernel reports, by its data.
pub(super) enum Tagged {
    /// A member that did not move.
    Program,
    /// The waker of the object.
    Waker,
    /// The doorbell of a member.
    Doorbell(c_int),
    /// The socket of a member.
    Socket(c_int),
}

impl Tagged {
    /// Returns the data of its events; for the program's, 0.
    pub(super) fn data(&self) -> u64 {
        match self {
            Self::Program => 0,
            Self::Waker => tag() | WAKER_TAG,
            Self::Doorbell(fd) => tag() | DOORBELL_TAG | *fd as u64,
            Self::Socket(fd) => tag() | *fd as u64,
        }
    }

    /// Returns whose events have these data.
    pub(super) fn of(data: u64) -> Self {
        let fd = (data & (DOORBELL_TAG - 1)) as c_int;
        match data {
            _ if !is_tagged(data) => Self::Program,
            _ if data & WAKER_TAG == WAKER_TAG => Self::Waker,
            _ if data & DOORBELL_TAG != 0 => Self::Doorbell(fd),
            _ => Self::Socket(fd),
        }
    }
}
