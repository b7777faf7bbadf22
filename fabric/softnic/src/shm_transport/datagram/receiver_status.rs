//! Receiver status of a datagram queue pair: a small segment that all its senders map and only its process writes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use farcall_shm::{Segment, SharedMem, SharedWord};
use farcall_verbs::Result;

const MAGIC: u64 = u64::from_le_bytes(*b"farcud01");
const AT_MAGIC: usize = 0;
/// Whether datagrams are accepted, and the Q_Key.
const ACCEPTS: usize = 64;
/// Number of receives posted; written by the thread that posts them.
const POSTED: usize = 128;
/// Number of receives consumed by datagrams; written by the polling thread.
const CONSUMED: usize = 192;
const LEN_BYTES: usize = 256;

const OPEN: u64 = 1 << 63;
/// The queue pair has been destroyed. Its number may be reused.
const DESTROYED: u64 = 1 << 62;

/// The receiver's view.
pub(crate) struct ReceiverStatus {
    segment: Segment,
    mem: SharedMem,
}

impl ReceiverStatus {
    pub(crate) fn create() -> Result<Self> {
        let segment = Segment::create("farcall-ud-board", LEN_BYTES)?;
        let mem = segment.memory();
        mem.store(AT_MAGIC, MAGIC, Release);
        Ok(Self { segment, mem })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    pub(crate) fn open(&self, qkey: u32) {
        self.mem.store(ACCEPTS, OPEN | u64::from(qkey), Release);
    }

    pub(crate) fn close(&self) {
        self.mem.store(ACCEPTS, 0, Release);
    }

    pub(crate) fn end(&self) {
        self.mem.store(ACCEPTS, DESTROYED, Release);
    }

    /// Returns whether a datagram with this Q_Key is accepted now.
    pub(crate) fn accepts(&self, qkey: u32) -> bool {
        self.mem.load(ACCEPTS, Acquire) == OPEN | u64::from(qkey)
    }

    pub(crate) fn posted(&self) -> u64 {
        self.mem.load(POSTED, Acquire)
    }

    pub(crate) fn set_posted(&self, receives: u64) {
        self.mem.store(POSTED, receives, Release);
    }

    pub(crate) fn set_consumed(&self, receives: u64) {
        self.mem.store(CONSUMED, receives, Release);
    }
}

/// A sender's view.
pub(crate) struct ReceiverStatusView {
    accepts: SharedWord,
    posted: SharedWord,
    consumed: SharedWord,
}

impl ReceiverStatusView {
    pub(crate) fn open(fd: &OwnedFd) -> Option<Self> {
        let mem = SharedMem::new(Segment::map_peer_segment(fd.as_fd(), 0, LEN_BYTES, false).ok()?);
        let word = |at| mem.word_at(at);
        (mem.load(AT_MAGIC, Relaxed) == MAGIC).then(|| Self {
            accepts: word(ACCEPTS),
            posted: word(POSTED),
            consumed: word(CONSUMED),
        })
    }

    /// Returns the Q_Key that is accepted now; `None` if no datagram is accepted.
    #[inline]
    pub(crate) fn accepts(&self) -> Option<u32> {
        let word = self.accepts.load(Acquire);
        (word & OPEN != 0).then_some(word as u32)
    }

    /// Returns whether no datagram is accepted now, but the queue pair exists and may accept again.
    pub(crate) fn is_paused(&self) -> bool {
        self.accepts.load(Acquire) & (OPEN | DESTROYED) == 0
    }

    /// Returns counters of which one changes whenever the receiver posts receives or consumes datagrams.
    pub(crate) fn progress(&self) -> [u64; 2] {
        [self.posted.load(Acquire), self.consumed.load(Acquire)]
    }

    /// Returns the number of receives that are posted and not consumed, according to the receiver's last update.
    pub(crate) fn receives(&self) -> u64 {
        let consumed = self.consumed.load(Acquire);
        self.posted.load(Acquire).saturating_sub(consumed)
    }
}
