//! The memory and the doorbells that the accepting end passes to the connecting one.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_shm::Segment;
use rustix::process::{Resource, getrlimit};

use crate::doorbell::Doorbell;
use crate::sock::layout::{LONG, MAGIC, PROOF, SEGMENT_BYTES};

/// Format of the memory, with its version.
pub(super) const FORMAT: u64 = u64::from_le_bytes(*b"farrun05");

/// Memory and doorbells of a connection that is being paired.
pub(super) struct ShmHandoff {
    pub(super) segment: Segment,
    pub(super) doorbell: OwnedFd,
    pub(super) peer_doorbell: OwnedFd,
}

impl ShmHandoff {
    /// Creates memory that states `proof`; `None` without memory or descriptors.
    pub(super) fn new(proof: u64) -> Option<Self> {
        // A process that exceeds its limit of file lengths gets SIGXFSZ.
        if getrlimit(Resource::Fsize).current.is_some_and(|bytes| bytes < SEGMENT_BYTES as u64) {
            return None;
        }
        let segment = Segment::create_sparse("farcall-run", LONG, SEGMENT_BYTES - LONG).ok()?;
        let words = segment.memory();
        words.store(PROOF, proof, Relaxed);
        words.store(MAGIC, FORMAT, SeqCst);
        let (doorbell, peer_doorbell) = Doorbell::pair()?;
        Some(Self { segment, doorbell, peer_doorbell })
    }
}
