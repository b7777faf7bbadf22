//! The receiving side: the ring and the words that the peer writes. All of it is foreign input.

use std::sync::Arc;

use farcall_link::{Region, Watch};

use crate::receive_ring::{OFFER_WORDS, ReceiveRing};
use crate::waking::{TOLD_AT_ONCE, Woken};
use crate::words::{
    CONSUMED, END, OFFER, PROMISE, Promise, TURN, WAKES_TAKEN, WISH, WRITTEN, Wish, written_of,
};

pub(crate) struct Inlet {
    words: Arc<Region>,
    pub ring: ReceiveRing,
    /// The word that says how much was written.
    watch: Watch,
    /// Whether that word may be believed by itself: WRITEs land in order.
    is_in_order: bool,
    pub woken: Woken,
    /// Written by the peer, as far as we know.
    pub seen: u64,
    /// Read by the owner, and of that known to the peer.
    pub read: u64,
    pub credited: u64,
    /// The length of the peer's stream.
    pub end: Option<u64>,
    /// Wake-ups taken, and of those known to the peer.
    pub wakes_taken: u64,
    pub wakes_credited: u64,
}

/// What the peer says about our own stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub consumed: u64,
    pub wakes_taken: u64,
    pub wish: Option<Wish>,
}

/// Why what the peer says cannot be.
pub(crate) type Impossible = String;

impl Inlet {
    pub fn new(words: Arc<Region>, ring: ReceiveRing, is_in_order: bool, woken: Woken) -> Self {
        let watch = Watch::new(Arc::clone(&words), WRITTEN);
        Self {
            words,
            ring,
            watch,
            is_in_order,
            woken,
            seen: 0,
            read: 0,
            credited: 0,
            end: None,
            wakes_taken: 0,
            wakes_credited: 0,
        }
    }

    /// Bytes that can be read.
    #[inline]
    pub const fn available(&self) -> u64 {
        self.seen - self.read
    }

    /// Whether the owner has read everything that will ever come.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Whether there is more than was seen: one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.is_in_order && self.watch.load_acquire() != self.seen
    }

    /// Looks how much was written. Returns whether that is more than before.
    #[inline]
    pub fn look(&mut self) -> Result<bool, Impossible> {
        if !self.is_in_order {
            return Ok(false);
        }
        let written = self.watch.load_acquire();
        if written == self.seen {
            self.ring.touch(self.seen);
            return Ok(false);
        }
        self.arrived(written)
    }

    /// A wake-up came. All that was posted before it has landed.
    #[inline]
    pub fn woken_by(&mut self, imm: u32) -> Result<bool, Impossible> {
        self.wakes_taken += 1;
        self.arrived(written_of(imm, self.seen))
    }

    #[inline]
    fn arrived(&mut self, written: u64) -> Result<bool, Impossible> {
        // An older word may land, or be taken, after a newer one.
        if written.wrapping_sub(self.seen) as i64 <= 0 {
            return Ok(false);
        }
        self.hear_turn()?;
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

    /// Where the peer turned to the ring that was offered. That word landed before any that says that bytes are there.
    #[inline]
    fn hear_turn(&mut self) -> Result<(), Impossible> {
        if !self.ring.may_turn() {
            return Ok(());
        }
        let turn = Promise::decode(self.words.load_acquire(TURN), self.seen);
        self.ring.turns(turn, self.read, self.seen)
    }

    /// The ring that the peer offers, in words of which each is read once.
    pub fn offered(&self) -> [u64; OFFER_WORDS] {
        std::array::from_fn(|at| self.words.load_acquire(OFFER + 8 * at))
    }

    /// The peer's stream ends here.
    pub fn ends(&mut self, end: u64) -> Result<bool, Impossible> {
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

    /// What the peer wishes now.
    #[inline]
    pub fn wish(&self) -> Option<Wish> {
        Wish::decode(self.words.load_acquire(WISH))
    }

    /// Reads the other words, each once. Returns what they say about our own stream, and whether the peer's has ended.
    #[inline]
    pub fn hear(&mut self) -> Result<(Heard, bool), Impossible> {
        let promise = self.words.load_acquire(PROMISE);
        if self.woken.is_asked_for() && promise != 0 {
            self.woken.promised(Promise::decode(promise, self.seen));
        }
        self.hear_turn()?;
        let ended = match self.words.load_acquire(END) {
            0 => false,
            end => self.ends(end - 1)?,
        };
        let heard = Heard {
            consumed: self.words.load_acquire(CONSUMED),
            wakes_taken: self.words.load_acquire(WAKES_TAKEN),
            wish: self.wish(),
        };
        Ok((heard, ended))
    }

    /// Reads into a private slice as much as there is.
    #[inline]
    pub fn copy_out(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() && self.available() > 0 {
            let most = self.available().min((out.len() - done) as u64);
            let (region, offset, len) = self.ring.together(self.read, most);
            region.copy_out(offset, &mut out[done..done + len]);
            self.read += len as u64;
            self.ring.change(self.read);
            done += len;
        }
        done
    }

    /// Appends to a private vector at most `most` of what there is.
    pub fn append_to(&mut self, out: &mut Vec<u8>, most: usize) {
        let most = self.available().min(most as u64);
        let end = self.read + most;
        while self.read < end {
            let (region, offset, len) = self.ring.together(self.read, end - self.read);
            region.append_to(offset, len, out);
            self.read += len as u64;
            self.ring.change(self.read);
        }
    }

    /// Whether the peer is to learn how much was read: in batches of a quarter of the ring.
    #[inline]
    pub const fn owes_credit(&self) -> bool {
        self.read - self.credited >= self.ring.len_bytes() / 4
    }

    /// Whether the peer is to learn how many wake-ups were taken.
    #[inline]
    pub const fn owes_wakes(&self) -> bool {
        self.wakes_taken - self.wakes_credited >= TOLD_AT_ONCE
    }

    /// Whether no byte can come without a wake-up.
    #[inline]
    pub fn may_sleep(&self) -> bool {
        !self.is_in_order || self.woken.may_sleep(self.seen)
    }
}
