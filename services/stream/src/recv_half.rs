//! The receiving side: the ring and the control words that the peer writes. All of it is untrusted input.

use std::sync::Arc;

use farcall_link::{PolledWord, Region};

use crate::receive_ring::{OFFER_WORDS, ReceiveRing};
use crate::waking::{WAKES_PER_CREDIT, WakeReceiver};
use crate::words::{
    CONSUMED, END, OFFER, TURN, WAKE_ACK, WAKE_REQUEST, WAKES_TAKEN, WRITTEN, WakeAck, WakeRequest,
    written_of,
};

pub(crate) struct RecvHalf {
    words: Arc<Region>,
    pub ring: ReceiveRing,
    /// The control word [`WRITTEN`].
    watch: PolledWord,
    /// `true` if WRITEs are placed in order, so that [`WRITTEN`] is valid by itself.
    is_in_order: bool,
    pub wake_receiver: WakeReceiver,
    /// Number of bytes that the peer is known to have written.
    pub seen: u64,
    /// Number of bytes read by the application, and the part of it that was sent to the peer as credit.
    pub read: u64,
    pub credited: u64,
    /// Length of the peer's stream, once it is known.
    pub end: Option<u64>,
    /// Number of wake-ups consumed, and the part of it that was sent to the peer.
    pub wakes_taken: u64,
    pub wakes_credited: u64,
}

/// State of the outgoing direction as the peer's control words report it. Not validated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerUpdate {
    pub consumed: u64,
    pub wakes_taken: u64,
    pub wake_request: Option<WakeRequest>,
}

/// Description of an impossible value.
pub(crate) type Violation = String;

impl RecvHalf {
    pub fn new(
        words: Arc<Region>,
        ring: ReceiveRing,
        is_in_order: bool,
        wake_receiver: WakeReceiver,
    ) -> Self {
        let watch = PolledWord::new(Arc::clone(&words), WRITTEN);
        Self {
            words,
            ring,
            watch,
            is_in_order,
            wake_receiver,
            seen: 0,
            read: 0,
            credited: 0,
            end: None,
            wakes_taken: 0,
            wakes_credited: 0,
        }
    }

    /// Returns the number of bytes that can be read.
    #[inline]
    pub const fn available(&self) -> u64 {
        self.seen - self.read
    }

    /// Returns whether the peer's stream has ended and all of it has been read.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Returns whether unseen bytes have arrived. Costs one load.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.is_in_order && self.watch.load_acquire() != self.seen
    }

    /// Polls [`WRITTEN`]. Returns whether new bytes have arrived.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, Violation> {
        if !self.is_in_order {
            return Ok(false);
        }
        let written = self.watch.load_acquire();
        if written == self.seen {
            self.ring.prefetch(self.seen);
            return Ok(false);
        }
        self.arrived(written)
    }

    /// Handles the immediate data of a wake-up. All WRITEs that were posted before it have been placed.
    #[inline]
    pub fn on_wake(&mut self, imm: u32) -> Result<bool, Violation> {
        self.wakes_taken += 1;
        self.arrived(written_of(imm, self.seen))
    }

    #[inline]
    fn arrived(&mut self, written: u64) -> Result<bool, Violation> {
        // An older value may be placed, or consumed, after a newer one.
        if written.wrapping_sub(self.seen) as i64 <= 0 {
            return Ok(false);
        }
        self.read_turn()?;
        let limit = self.ring.limit(self.read);
        if written > limit {
            return Err(format!("byte {written} when the ring ends at {limit}"));
        }
        if let Some(end) = self.end.filter(|end| written > *end) {
            return Err(format!("byte {written} of a stream of {end}"));
        }
        self.seen = written;
        self.ring.written(written, self.credited);
        Ok(true)
    }

    /// Reads [`TURN`]: the position from which on the peer writes into the offered ring. It is placed before any
    /// control word that announces bytes in that ring.
    #[inline]
    fn read_turn(&mut self) -> Result<(), Violation> {
        if !self.ring.may_switch() {
            return Ok(());
        }
        let turn = WakeAck::decode(self.words.load_acquire(TURN), self.seen);
        self.ring.on_switch(turn, self.read, self.seen)
    }

    /// Reads the words of the ring that the peer offers, each once.
    pub fn offered(&self) -> [u64; OFFER_WORDS] {
        std::array::from_fn(|at| self.words.load_acquire(OFFER + 8 * at))
    }

    /// Records the end of the peer's stream. Returns whether it was unknown before.
    pub fn ends(&mut self, end: u64) -> Result<bool, Violation> {
        match self.end {
            Some(before) if before == end => Ok(false),
            Some(before) => Err(format!("a stream of {before} bytes, then of {end}")),
            None if end < self.seen => Err(format!("a stream of {end} bytes after {}", self.seen)),
            None => {
                self.end = Some(end);
                Ok(true)
            }
        }
    }

    /// Returns the peer's current wake request.
    #[inline]
    pub fn wake_request(&self) -> Option<WakeRequest> {
        WakeRequest::decode(self.words.load_acquire(WAKE_REQUEST))
    }

    /// Reads the other control words, each once. Returns the state of the outgoing direction, and whether the end of
    /// the peer's stream became known.
    #[inline]
    pub fn read_words(&mut self) -> Result<(PeerUpdate, bool), Violation> {
        let ack = self.words.load_acquire(WAKE_ACK);
        if self.wake_receiver.requests_wakes() && ack != 0 {
            self.wake_receiver.on_ack(WakeAck::decode(ack, self.seen));
        }
        self.read_turn()?;
        let ended = match self.words.load_acquire(END) {
            0 => false,
            end => self.ends(end - 1)?,
        };
        let update = PeerUpdate {
            consumed: self.words.load_acquire(CONSUMED),
            wakes_taken: self.words.load_acquire(WAKES_TAKEN),
            wake_request: self.wake_request(),
        };
        Ok((update, ended))
    }

    /// Copies available bytes into `out`. Returns their number.
    #[inline]
    pub fn copy_out(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() && self.available() > 0 {
            let most = self.available().min((out.len() - done) as u64);
            let (region, offset, len) = self.ring.contiguous(self.read, most);
            region.copy_out(offset, &mut out[done..done + len]);
            self.read += len as u64;
            self.ring.change(self.read);
            done += len;
        }
        done
    }

    /// Appends up to `most` available bytes to `out`.
    pub fn append_to(&mut self, out: &mut Vec<u8>, most: usize) {
        let most = self.available().min(most as u64);
        let end = self.read + most;
        while self.read < end {
            let (region, offset, len) = self.ring.contiguous(self.read, end - self.read);
            region.append_to(offset, len, out);
            self.read += len as u64;
            self.ring.change(self.read);
        }
    }

    /// Returns whether credit is due. Credit is sent in batches of a quarter of the ring.
    #[inline]
    pub const fn credit_due(&self) -> bool {
        self.read - self.credited >= self.ring.len_bytes() / 4
    }

    /// Returns whether the number of consumed wake-ups is due to be sent.
    #[inline]
    pub const fn wakes_due(&self) -> bool {
        self.wakes_taken - self.wakes_credited >= WAKES_PER_CREDIT
    }

    /// Returns whether every further byte is certain to arrive with a wake-up.
    #[inline]
    pub fn may_sleep(&self) -> bool {
        !self.is_in_order || self.wake_receiver.may_sleep(self.seen)
    }
}
