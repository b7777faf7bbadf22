//! The posted receives of one connection: slots for SENDs, or receives without bytes that only signal wake-ups.

use std::collections::VecDeque;

use farcall_link::{LocalSlice, PostRefused, QueuePair, Receive, ReceiveChain, RegionId};
use farcall_verbs::{Error, with_sources};

/// Posted receives, and the slots of receives that a SEND has completed, in the order of their completions. The
/// receive of a slot is posted again when its message is consumed. A peer that sends no more messages than its credits
/// therefore always finds a receive.
pub(crate) struct Inbox {
    /// One receive per slot, tagged with the slot's number; `None` if receives have no bytes.
    slots: Option<ReceiveChain>,
    slot_bytes: usize,
    arrived: VecDeque<u16>,
}

impl Inbox {
    /// Returns an inbox without receives.
    pub const fn none() -> Self {
        Self { slots: None, slot_bytes: 0, arrived: VecDeque::new() }
    }

    /// Posts `count` receives without bytes.
    ///
    /// # Errors
    /// Returns the queue pair's error if it rejects the receives.
    pub fn of_wakes(pair: &mut QueuePair, count: u32) -> Result<Self, Error> {
        pair.post_empty_receives(count)?;
        Ok(Self::none())
    }

    /// Posts a receive for each of the first `count` slots of a region.
    ///
    /// # Errors
    /// Returns the queue pair's error if it rejects the receives.
    pub fn of_slots(
        pair: &mut QueuePair,
        region: RegionId,
        slot_bytes: u32,
        count: usize,
    ) -> Result<Self, Error> {
        let slot_bytes = slot_bytes as usize;
        let piece = |slot| [LocalSlice { region, offset: slot * slot_bytes, len_bytes: slot_bytes }];
        let pieces: Vec<[LocalSlice; 1]> = (0..count).map(piece).collect();
        let receives: Vec<Receive<'_>> =
            (0..).zip(&pieces).map(|(tag, local)| Receive { local, tag }).collect();
        let slots = pair.receive_chain(&receives);
        pair.post_receives(&slots, 0..count).map_err(|refused| match refused {
            PostRefused::Post { source, .. } => *source.source,
            other => Error::invalid("post receives", with_sources(&other)),
        })?;
        Ok(Self { slots: Some(slots), slot_bytes, arrived: VecDeque::with_capacity(count) })
    }

    /// Returns whether there is no unconsumed message.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Returns the offset, in the region, of the oldest unconsumed message.
    #[inline]
    pub fn front(&self) -> Option<usize> {
        self.arrived.front().map(|slot| self.offset(usize::from(*slot)))
    }

    /// Returns the offset of a slot in the region.
    #[inline]
    pub const fn offset(&self, slot: usize) -> usize {
        slot * self.slot_bytes
    }

    /// Records a completed receive. Returns whether it was only a wake-up, whose receive is posted again at once.
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

    /// Removes the oldest message, which has been consumed, and posts the receive of its slot again.
    #[inline]
    pub fn repost(&mut self, pair: &mut QueuePair) {
        if let Some(slot) = self.arrived.pop_front() {
            self.post(pair, usize::from(slot));
        }
    }

    /// Posts the receive of a slot. If posting fails, the queue pair is in the error state, and its flushed work
    /// requests report that.
    #[inline]
    pub fn post(&self, pair: &mut QueuePair, slot: usize) {
        match &self.slots {
            Some(slots) => drop(pair.post_receives(slots, slot..slot + 1)),
            None => drop(pair.post_empty_receives(1)),
        }
    }
}
