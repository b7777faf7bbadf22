//! The memory and the doorbells that two ends share.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_shm::{Segment, SharedMem};
use rustix::process::{Resource, getrlimit};

use crate::door::Door;
use crate::memory::Memory;
use crate::ring::{Part, Ring, WORDS_BYTES};
use crate::sock::Link;
use crate::switch::Switch;

/// The first word of the memory: what it is, and its version.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"farrun05");

pub(super) const AT_MAGIC: usize = 0;

/// Where the connecting end says that it closed or shut down.
pub const AT_CONNECTED_END: usize = 24;

const AT_ACCEPTED_END: usize = 32;

/// Proof of the connecting end, as the accepting end states it.
pub(super) const AT_PROOF: usize = 40;

const WORDS_AT: [usize; 2] = [256, 256 + WORDS_BYTES];

const SHORT_AT: usize = 4096;

const SHORT_BYTES: usize = 64 << 10;

const LONG_AT: usize = SHORT_AT + 2 * SHORT_BYTES;

const LONG_BYTES: usize = 1 << 20;

pub(super) const SEGMENT_BYTES: usize = LONG_AT + 2 * LONG_BYTES;

/// Memory and doorbells of a connection, before they are its.
pub(super) struct Made {
    pub(super) segment: Segment,
    pub(super) door: OwnedFd,
    pub(super) peer_door: OwnedFd,
}

pub(super) fn make(proof: u64) -> Option<Made> {
    // A process that exceeds its limit of file lengths gets SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|bytes| bytes < SEGMENT_BYTES as u64) {
        return None;
    }
    let segment = Segment::create_sparse("farcall-run", LONG_AT, 2 * LONG_BYTES).ok()?;
    let words = segment.memory();
    words.store(AT_PROOF, proof, Relaxed);
    words.store(AT_MAGIC, MAGIC, SeqCst);
    let (door, peer_door) = Door::pair()?;
    Some(Made { segment, door, peer_door })
}

/// Creates the link of an end over the shared memory; the first ring is that of the connecting end.
pub(super) fn link(words: SharedMem, connected: bool, door: OwnedFd) -> Option<Link> {
    let direction = |i: usize| {
        let short = Part { at: SHORT_AT + i * SHORT_BYTES, len_bytes: SHORT_BYTES };
        let long = Part { at: LONG_AT + i * LONG_BYTES, len_bytes: LONG_BYTES };
        let ring = Ring::new(Memory::new(words.clone()), WORDS_AT[i], short, long);
        Switch::new(ring, Memory::new(words.clone()), WORDS_AT[i])
    };
    let (out, inn) = if connected { (direction(0), direction(1)) } else { (direction(1), direction(0)) };
    let (own_end, peer_end) =
        if connected { (AT_CONNECTED_END, AT_ACCEPTED_END) } else { (AT_ACCEPTED_END, AT_CONNECTED_END) };
    let door = Door::new(door)?;
    Some(Link { out, inn, words, own_end, peer_end, door })
}
