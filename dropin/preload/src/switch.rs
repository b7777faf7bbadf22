//! One direction of a connection between TCP and a carrier that is faster, as one state machine.
//!
//! | state | since | bytes are sent by | bytes are received from |
//! |---|---|---|---|
//! | unused | the ends are paired | TCP | TCP |
//! | begun | [`Switch::begin`], at an offset | the carrier | TCP up to the offset, then the carrier |
//! | drained | all bytes before the offset were received | the carrier | the carrier |
//! | ended | [`Carrier::end`], at the offset that the carrier has reached | TCP | the carrier up to its end, then TCP |
//!
//! The carrier ends once, from each state and by either end; one that ends unused is never begun. Which bytes are in
//! the carrier, and how it ends at one offset for both ends, is its own matter ([`Carrier`]; rings in shared memory are
//! one). How two ends prove to each other that they are those of one connection is a parameter of `rendezvous`
//! (`rendezvous::proof`).

use std::ops::Deref;
use std::sync::atomic::Ordering::SeqCst;

use crate::memory::{AtomicChange, Memory};

/// 1 if the sender has begun; its earlier bytes were sent by TCP.
const BEGUN: usize = 16;
/// Number of bytes that were sent by TCP before.
const BEGINS_AT: usize = 24;
/// 1 if the receiver has read all bytes that were sent by TCP before the carrier.
const DRAINED: usize = 144;
/// Number of bytes that the receiver has read by TCP.
const READ_BY_TCP: usize = 152;

/// State of a carrier at one moment.
#[derive(Clone, Copy)]
pub struct RingSnapshot {
    /// Number of bytes that were sent and not received.
    pub unread_bytes: u64,
    /// `true` if no more bytes will arrive.
    pub is_closed: bool,
}

/// A carrier of the bytes of one direction instead of TCP.
pub trait Carrier {
    /// Returns its state.
    fn snapshot(&self) -> RingSnapshot;

    /// Ends it at the byte that it has reached, for both ends at once.
    fn end(&self);
}

/// One direction of a connection, which a carrier of type `C` may carry.
pub struct Switch<C> {
    carrier: C,
    mem: Memory,
    words: usize,
}

impl<C> Deref for Switch<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.carrier
    }
}

impl<C: Carrier> Switch<C> {
    /// Creates the direction whose control words begin at `words`; the carrier uses others of them.
    pub fn new(carrier: C, mem: Memory, words: usize) -> Self {
        Self { carrier, mem, words }
    }

    /// Returns what is in the carrier.
    #[inline]
    pub fn snapshot(&self) -> RingSnapshot {
        self.carrier.snapshot()
    }

    /// Returns to TCP at the offset that the carrier has reached, for both ends at once.
    pub fn end(&self) {
        self.carrier.end();
    }

    fn load(&self, word: usize) -> u64 {
        self.mem.load(self.words + word, SeqCst)
    }

    /// Returns whether the sender has begun.
    pub fn has_begun(&self) -> bool {
        self.load(BEGUN) != 0
    }

    /// Begins to send by the carrier, after `after_bytes` bytes that were sent by TCP.
    pub fn begin(&self, after_bytes: u64) {
        self.mem.store(self.words + BEGINS_AT, after_bytes, SeqCst);
        self.mem.store(self.words + BEGUN, 1, SeqCst);
    }

    /// Returns whether bytes were sent by TCP while the carrier was in use, if `sent_by_tcp_bytes` were sent by TCP in
    /// all.
    pub fn was_bypassed(&self, sent_by_tcp_bytes: u64) -> bool {
        self.has_begun() && !self.snapshot().is_closed && sent_by_tcp_bytes > self.load(BEGINS_AT)
    }

    /// Sets the number of bytes that the receiver has read by TCP when the ends are paired.
    pub fn set_read_by_tcp(&self, len_bytes: u64) {
        self.mem.store(self.words + READ_BY_TCP, len_bytes, SeqCst);
    }

    /// Records that the receiver has read more bytes by TCP.
    pub fn add_read_by_tcp(&self, len_bytes: u64) {
        self.mem.update(self.words + READ_BY_TCP, AtomicChange::Add(len_bytes));
    }

    /// Returns whether the carrier's bytes are next for a receiver that has peeked at `passed_bytes` before it, which
    /// still wait in the kernel.
    pub fn is_reached(&self, passed_bytes: u64) -> bool {
        self.is_drained() || (self.has_begun() && self.left_by_tcp_bytes() == passed_bytes)
    }

    /// Returns whether all bytes that were sent by TCP before the carrier are read or among the `waiting_bytes` in the
    /// kernel.
    pub fn have_arrived_before(&self, waiting_bytes: u64) -> bool {
        self.has_begun() && self.left_by_tcp_bytes() <= waiting_bytes
    }

    /// Returns the number of unread bytes that were sent by TCP before the carrier.
    fn left_by_tcp_bytes(&self) -> u64 {
        self.load(BEGINS_AT).saturating_sub(self.load(READ_BY_TCP))
    }

    /// Returns the number of bytes that were sent by TCP before the carrier and are to be received first;
    /// `waiting_bytes` returns the number of bytes that wait in the kernel. The receiver's lock is held.
    pub fn bytes_before(&self, waiting_bytes: impl FnOnce() -> u64) -> u64 {
        if self.is_drained() {
            return 0;
        }
        if !self.has_begun() {
            let waiting_bytes = waiting_bytes();
            let is_closed = self.snapshot().is_closed;
            // Checked last: if the carrier has not begun now, all waiting bytes precede it, and if it has ended it
            // never begins.
            if !self.has_begun() {
                if !is_closed {
                    return waiting_bytes;
                }
                self.set_drained();
                return 0;
            }
        }
        let left_bytes = self.left_by_tcp_bytes();
        if left_bytes == 0 {
            self.set_drained();
        }
        left_bytes
    }

    /// Returns whether all bytes that were sent by TCP before the carrier have been received.
    pub fn is_drained(&self) -> bool {
        self.load(DRAINED) != 0
    }

    /// Records that all bytes before the carrier have been received.
    fn set_drained(&self) {
        self.mem.store(self.words + DRAINED, 1, SeqCst);
    }
}
