//! Memory and doorbells that the two ends of a connection share.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

use farcall_shm::SharedMem;

use super::layout::{ACCEPTING_END, BYPASSED, CONNECTING_END, DIRECTIONS, MAPPED, parts};
use crate::doorbell::Doorbell;
use crate::memory::Memory;
use crate::ring::Ring;
use crate::switch::Switch;

/// The memory that two ends share, as one of them uses it.
pub struct Link {
    /// Bytes to the peer.
    pub outgoing: Switch<Ring>,
    /// Bytes from the peer.
    pub incoming: Switch<Ring>,
    /// Wakes the peer's threads; the peer wakes those of this process.
    pub doorbell: Doorbell,
    words: SharedMem,
    is_connecting: bool,
}

impl Link {
    /// Creates the link of an end over the shared memory; the first direction is that from the connecting end. Returns
    /// `None` if the library can have no descriptor.
    pub fn new(words: SharedMem, is_connecting: bool, doorbell: OwnedFd) -> Option<Self> {
        let direction = |i: usize| {
            let (short, long) = parts(i);
            let ring = Ring::new(Memory::new(words.clone()), DIRECTIONS[i], short, long);
            Switch::new(ring, Memory::new(words.clone()), DIRECTIONS[i])
        };
        let (outgoing, incoming) =
            (direction(usize::from(!is_connecting)), direction(usize::from(is_connecting)));
        Some(Self { outgoing, incoming, doorbell: Doorbell::new(doorbell)?, words, is_connecting })
    }

    /// Announces, at the connecting end, that it maps the memory.
    pub fn announce_mapped(&self) {
        self.words.store(MAPPED, 1, SeqCst);
    }

    /// Returns whether the peer maps the memory. The accepting end has created it.
    pub fn is_mapped_by_peer(&self) -> bool {
        self.is_connecting || self.words.load(MAPPED, SeqCst) != 0
    }

    /// Announces that this end closes or shuts down.
    pub fn announce_end(&self) {
        self.words.store(if self.is_connecting { CONNECTING_END } else { ACCEPTING_END }, 1, SeqCst);
    }

    /// Returns whether the peer has announced that it closes or shuts down.
    pub fn has_peer_announced_end(&self) -> bool {
        self.words.load(if self.is_connecting { ACCEPTING_END } else { CONNECTING_END }, SeqCst) != 0
    }

    /// Announces that this end has sent bytes by TCP while its ring was in use. The peer does not know their position
    /// among those of the ring.
    pub fn announce_bypass(&self) {
        self.words.store(BYPASSED, 1, SeqCst);
    }

    /// Returns whether an end has announced that bytes bypassed its ring.
    pub fn was_bypassed(&self) -> bool {
        self.words.load(BYPASSED, SeqCst) != 0
    }

    /// Returns whether both rings have ended.
    pub fn is_closed(&self) -> bool {
        self.outgoing.snapshot().is_closed && self.incoming.snapshot().is_closed
    }

    /// Ends both rings at the bytes that they have reached.
    pub fn close(&self) {
        self.outgoing.end();
        self.incoming.end();
    }
}
