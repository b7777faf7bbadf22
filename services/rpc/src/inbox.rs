//! The receives of one connection: slots that SENDs land in, or none, where only wake-ups come.

use std::collections::VecDeque;

use farcall_link::{Piece, PostRefused, QueuePair, Receive, ReceiveChain, RegionId};
use farcall_verbs::Error;

/// Receives that are posted, and the slots of those that a SEND has completed, in the order of their completions. A
/// receive is posted again when its message is taken, so who sends no more than he was given credits for always finds
/// one.
pub(crate) struct Inbox {
    /// A receive for each slot, tagged with its number; none if receives have no bytes.
    slots: Option<ReceiveChain>,
    slot_bytes: usize,
    arrived: VecDeque<u16>,
}

impl Inbox {
    /// No receives.
    pub const fn none() -> Self {
        Self { slots: None, slot_bytes: 0, arrived: VecDeque::new() }
    }

    /// Posts `count` receives of no bytes.
    ///
    /// # Errors
    /// If the queue pair refuses.
    pub fn of_wakes(pair: &mut QueuePair, count: u32) -> Result<Self, Error> {
        pair.post_empty_receives(count)?;
        Ok(Self::none())
    }

    /// Posts a receive for each of `count` slots of a region.
    ///
    /// # Errors
    /// If the queue pair refuses.
    pub fn of_slots(
        pair: &mut QueuePair,
        region: RegionId,
        slot_bytes: u32,
        count: usize,
    ) -> Result<Self, Error> {
        let slot_bytes = slot_bytes as usize;
        let piece = |slot| [Piece { region, offset: slot * slot_bytes, len_bytes: slot_bytes }];
        let pieces: Vec<[Piece; 1]> = (0..count).map(piece).collect();
        let receives: Vec<Receive<'_>> =
            (0..).zip(&pieces).map(|(tag, local)| Receive { local, tag }).collect();
        let slots = pair.receive_chain(&receives);
        pair.post_receives(&slots, 0..count).map_err(|refused| match refused {
            PostRefused::Post { source, .. } => *source.source,
            other => Error::invalid("post receives", other.to_string()),
        })?;
        Ok(Self { slots: Some(slots), slot_bytes, arrived: VecDeque::with_capacity(count) })
    }

    /// Whether no message has arrived.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Where, in the region, the oldest message that has arrived is.
    #[inline]
    pub fn front(&self) -> Option<usize> {
        self.arrived.front().map(|slot| self.offset(usize::from(*slot)))
    }

    /// Where, in the region, a slot is.
    #[inline]
    pub const fn offset(&self, slot: usize) -> usize {
        slot * self.slot_bytes
    }

    /// A receive was completed. Returns whether that only woke us: it is posted again then.
    #[inline]
    pub fn received(&mut self, pair: &mut QueuePair, tag: u64, imm: Option<u32>) -> bool {
        let is_message = self.slots.is_some() && imm.is_none();
        if is_message {
            self.arrived.push_back(tag as u16);
        } else {
            self.post(pair, tag as usize);
        }
        !is_message
    }

    /// The oldest message was taken: its slot is for another one.
    #[inline]
    pub fn give_back(&mut self, pair: &mut QueuePair) {
        if let Some(slot) = self.arrived.pop_front() {
            self.post(pair, usize::from(slot));
        }
    }

    /// Posts the receive of a slot. One that cannot be posted again means a queue pair in error: its flushes report that.
    #[inline]
    pub fn post(&self, pair: &mut QueuePair, slot: usize) {
        match &self.slots {
            Some(slots) => drop(pair.post_receives(slots, slot..slot + 1)),
            None => drop(pair.post_empty_receives(1)),
        }
    }
}
