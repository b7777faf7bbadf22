//! Fenced revocation: how an owner takes back memory that initiators access by themselves.
//!
//! An initiator publishes a hazard before it re-checks that the access is (still) granted, copies, and clears the
//! hazard. The owner revokes (closes the pair, or bumps the region's generation), issues a process-wide barrier, and
//! waits until no hazard covers what it took back. Only the frequent side is cheap.

use crate::fence;
use crate::ring::HAZARD;
use crate::shared::SharedMem;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A hazard value of an access that is to a pair's own receives.
pub(crate) const RECEIVES: u64 = u64::MAX;

/// The hazard value of an access to a region.
pub(crate) const fn of_region(rkey: u32) -> u64 {
    rkey as u64 + 1
}

/// Initiator: as [`enter`], through a word that was looked up before.
#[cfg(not(loom))]
#[inline]
pub(crate) fn enter_word(word: &crate::shared::SharedWord, value: u64) {
    word.store(value, Relaxed);
    fence::light();
}

/// Initiator: begins an access. What it was granted must be checked *after* this.
#[inline]
pub(crate) fn enter(mem: &SharedMem, value: u64) {
    mem.store(HAZARD, value, Relaxed);
    fence::light();
}

/// Initiator: ends the access.
#[inline]
pub(crate) fn leave(mem: &SharedMem) {
    mem.store(HAZARD, 0, Release);
}

/// Owner, after revoking and [`fence::heavy`]: the access under way, or 0.
pub(crate) fn current(mem: &SharedMem) -> u64 {
    mem.load(HAZARD, Acquire)
}
