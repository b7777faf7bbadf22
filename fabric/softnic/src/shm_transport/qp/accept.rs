//! Control word by which a target authorizes an initiator and its operations.

use std::sync::atomic::Ordering::Acquire;

use farcall_shm::SharedMem;
use farcall_shm::ring::ACCEPT;
use farcall_verbs::Access;

/// Value of the `ACCEPT` word of an inbound segment; 0 means closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accept(u64);

const OPEN: u64 = 1 << 63;

impl Accept {
    pub(crate) fn new(src_qpn: u32, access: Access) -> Self {
        Self(OPEN | u64::from(access.bits() & 0xFF) << 24 | u64::from(src_qpn & 0xFF_FFFF))
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns what the target of an inbound segment accepts from queue pair `src_qpn` now; `None` if it accepts
    /// nothing.
    /// Only meaningful while a hazard is published.
    #[inline]
    pub(crate) fn read(inbound: &SharedMem, src_qpn: u32) -> Option<Self> {
        let accept = Self::from_word(inbound.load(ACCEPT, Acquire));
        (accept.is_open() && accept.src_qpn() == src_qpn).then_some(accept)
    }

    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    pub(crate) const fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    pub(crate) const fn src_qpn(self) -> u32 {
        self.0 as u32 & 0xFF_FFFF
    }

    pub(crate) const fn access(self) -> Access {
        Access::from_bits_truncate((self.0 >> 24) as u32 & 0xFF)
    }
}
