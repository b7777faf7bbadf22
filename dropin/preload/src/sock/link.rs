//! Memory and doorbells that the two ends of a connection share.

use farcall_shm::SharedMem;

use crate::door::Door;
use crate::ring::Ring;
use crate::switch::Switch;

/// The memory that two ends share, as one of them uses it.
pub struct Link {
    /// Bytes to the peer.
    pub out: Switch<Ring>,
    /// Bytes from the peer.
    pub inn: Switch<Ring>,
    /// The words about the whole connection.
    pub words: SharedMem,
    /// Where in them this end says that it closed or shut down, and where the peer does.
    pub own_end: usize,
    /// As `own_end`.
    pub peer_end: usize,
    /// Wakes the peer's threads, and is rung by them.
    pub door: Door,
}

/// Where in the words an end that connected says that it mapped them.
pub const MAPPED: usize = 16;

/// Where in them an end says, when it closes, that bytes went by TCP while its ring was in use.
pub const STRAYED: usize = 48;
