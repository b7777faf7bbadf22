//! Layout of the memory that the two ends of a connection share: offsets in bytes.

use crate::ring::{Part, WORDS_BYTES};

/// Number of the format, with a version.
pub const MAGIC: usize = 0;
/// The connecting end has mapped the memory.
pub(super) const MAPPED: usize = 16;
/// The connecting end has closed or shut down.
pub(super) const CONNECTING_END: usize = 24;
/// The accepting end has closed or shut down.
pub(super) const ACCEPTING_END: usize = 32;
/// Proof of the connecting end, as the accepting end states it.
pub const PROOF: usize = 40;
/// An end that closes has sent bytes by TCP while its ring was in use.
pub(super) const BYPASSED: usize = 48;

/// Control words of both directions.
pub(super) const DIRECTIONS: [usize; 2] = [256, 256 + WORDS_BYTES];

const SHORT: usize = 4096;
const SHORT_BYTES: usize = 64 << 10;
/// Begin of the long parts, which are allocated when they are needed.
pub const LONG: usize = SHORT + 2 * SHORT_BYTES;
const LONG_BYTES: usize = 1 << 20;
/// Length of the memory.
pub const SEGMENT_BYTES: usize = LONG + 2 * LONG_BYTES;

/// Returns the short and the long part of a direction.
pub(super) fn parts(direction: usize) -> (Part, Part) {
    let short = Part { at: SHORT + direction * SHORT_BYTES, len_bytes: SHORT_BYTES };
    let long = Part { at: LONG + direction * LONG_BYTES, len_bytes: LONG_BYTES };
    (short, long)
}
