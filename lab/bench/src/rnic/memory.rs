//! Registered memory of an end: slots for incoming messages, then slots for outgoing ones.

use farcall_link::{LocalSlice, Nic, Region, RegionId};
use farcall_verbs::Access;
use std::sync::Arc;

/// Initial content of the slots for incoming messages, against which a READ is checked.
pub(super) const FILL: u8 = 0xa5;
/// [`FILL`] as the word on which atomics operate.
pub(super) const FILL_WORD: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// Length in bytes of the header in front of a received datagram (IBA 11.4.1.2).
const GRH_LEN_BYTES: usize = 40;
/// Space for that header which leaves the message on a cache line of its own.
const HEADROOM_BYTES: usize = 64;
const PAGE_LEN_BYTES: usize = 4096;

/// Number and size of the slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Length of a message in bytes.
    pub(super) len_bytes: usize,
    /// Number of slots for incoming messages.
    pub(super) incoming: usize,
    /// Number of slots for outgoing messages.
    pub(super) outgoing: usize,
    /// `true` if this end receives datagrams.
    pub(super) with_grh: bool,
}

pub(super) struct Memory {
    region: Arc<Region>,
    places: Places,
}

impl Memory {
    /// Allocates and registers the slots. Queues that use the region must attach it first.
    pub(super) fn new(nic: &Nic, places: Places, access: Access) -> farcall_verbs::Result<Self> {
        let incoming_len_bytes = places.incoming_len_bytes();
        let len_bytes = incoming_len_bytes + places.outgoing * places.stride_bytes();
        let region = Region::alloc(&**nic.pd(), len_bytes.next_multiple_of(PAGE_LEN_BYTES), access)?;
        region.fill(0, incoming_len_bytes, FILL);
        Ok(Self { region: Arc::new(region), places })
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(super) fn places(&self) -> Places {
        self.places
    }

    fn piece(&self, offset: usize, len_bytes: usize) -> LocalSlice {
        LocalSlice { region: RegionId::FIRST, offset, len_bytes }
    }

    /// Returns the slot of an outgoing message; READs and atomics store their result there.
    pub(super) fn outgoing(&self, place: usize) -> LocalSlice {
        self.piece(self.places.outgoing_offset_bytes(place), self.places.len_bytes)
    }

    /// Returns the slot of an incoming message, from which it can be sent.
    pub(super) fn incoming(&self, place: usize) -> LocalSlice {
        self.piece(self.places.incoming_offset_bytes(place), self.places.len_bytes)
    }

    /// Returns the buffer of a receive. The message that it receives lies in the range that [`Self::incoming`]
    /// returns.
    pub(super) fn receive(&self, place: usize) -> LocalSlice {
        let header_len_bytes = if self.places.with_grh { GRH_LEN_BYTES } else { 0 };
        let LocalSlice { offset, len_bytes, .. } = self.incoming(place);
        self.piece(offset - header_len_bytes, header_len_bytes + len_bytes)
    }

    /// Sets the last byte of an outgoing message.
    #[inline]
    pub(super) fn mark_outgoing(&self, place: usize, mark: u8) {
        let last = self.places.outgoing_offset_bytes(place) + self.places.len_bytes - 1;
        self.region.store_byte_relaxed(last, mark);
    }

    /// Returns the last byte of an outgoing slot, where READs store theirs.
    #[inline]
    pub(super) fn last_outgoing(&self, place: usize) -> u8 {
        let last = self.places.outgoing_offset_bytes(place) + self.places.len_bytes - 1;
        self.region.load_byte_acquire(last)
    }

    /// Returns the first word of an outgoing slot, where atomics store the previous value.
    #[inline]
    pub(super) fn word_outgoing(&self, place: usize) -> u64 {
        self.region.load_acquire(self.places.outgoing_offset_bytes(place))
    }

    /// Returns the last byte of an incoming message.
    #[inline]
    pub(super) fn last_incoming(&self, place: usize) -> u8 {
        let last = self.places.incoming_offset_bytes(place) + self.places.len_bytes - 1;
        self.region.load_byte_acquire(last)
    }

    /// Returns the first word of the first incoming slot, on which atomics operate.
    pub(super) fn first_word_incoming(&self) -> u64 {
        self.region.load_acquire(self.places.incoming_offset_bytes(0))
    }
}

impl Places {
    fn headroom_bytes(&self) -> usize {
        if self.with_grh { HEADROOM_BYTES } else { 0 }
    }

    /// Returns the distance between two slots in bytes.
    pub(super) fn stride_bytes(&self) -> usize {
        (self.headroom_bytes() + self.len_bytes).next_multiple_of(64)
    }

    /// Returns the offset of an incoming message from the start of the region in bytes.
    pub(super) fn incoming_offset_bytes(&self, place: usize) -> usize {
        place * self.stride_bytes() + self.headroom_bytes()
    }

    fn outgoing_offset_bytes(&self, place: usize) -> usize {
        self.incoming_len_bytes() + place * self.stride_bytes()
    }

    fn incoming_len_bytes(&self) -> usize {
        (self.incoming * self.stride_bytes()).next_multiple_of(PAGE_LEN_BYTES)
    }
}
