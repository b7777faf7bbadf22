//! An end's registered memory: places for incoming messages, then places for outgoing ones.

use farcall_link::{Nic, Piece, Region, RegionId};
use farcall_verbs::Access;
use std::sync::Arc;

/// What places for incoming messages hold before anything comes, so that a READ can be checked.
pub(super) const FILL: u8 = 0xa5;
/// The same as the word that atomics find.
pub(super) const FILL_WORD: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// Bytes in front of a datagram in its receive (IBA 11.4.1.2).
const GRH_LEN_BYTES: usize = 40;
/// Room for them that leaves the message on a cache line of its own.
const HEADROOM_BYTES: usize = 64;
const PAGE_LEN_BYTES: usize = 4096;

/// How much there is of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Bytes of a message.
    pub(super) len_bytes: usize,
    /// Places for incoming messages.
    pub(super) incoming: usize,
    /// Places for outgoing messages.
    pub(super) outgoing: usize,
    /// Whether datagrams come in.
    pub(super) with_grh: bool,
}

pub(super) struct Memory {
    region: Arc<Region>,
    places: Places,
}

impl Memory {
    /// Allocates the places, for queues that attach them first.
    pub(super) fn new(nic: &Nic, places: Places, access: Access) -> farcall_verbs::Result<Self> {
        let incoming_len_bytes = places.incoming_len_bytes();
        let len_bytes = incoming_len_bytes + places.outgoing * places.stride_bytes();
        let region = Region::alloc(&*nic.pd, len_bytes.next_multiple_of(PAGE_LEN_BYTES), access)?;
        region.fill(0, incoming_len_bytes, FILL);
        Ok(Self { region: Arc::new(region), places })
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(super) fn places(&self) -> Places {
        self.places
    }

    fn piece(&self, offset: usize, len_bytes: usize) -> Piece {
        Piece { region: RegionId::FIRST, offset, len_bytes }
    }

    /// An outgoing message; of READs and atomics, where the result comes.
    pub(super) fn outgoing(&self, place: usize) -> Piece {
        self.piece(self.places.outgoing_offset_bytes(place), self.places.len_bytes)
    }

    /// An incoming message, to be sent on from where it lies.
    pub(super) fn incoming(&self, place: usize) -> Piece {
        self.piece(self.places.incoming_offset_bytes(place), self.places.len_bytes)
    }

    /// Where a receive puts its message, which then lies where [`Self::incoming`] says.
    pub(super) fn receive(&self, place: usize) -> Piece {
        let header_len_bytes = if self.places.with_grh { GRH_LEN_BYTES } else { 0 };
        let Piece { offset, len_bytes, .. } = self.incoming(place);
        self.piece(offset - header_len_bytes, header_len_bytes + len_bytes)
    }

    /// Sets the last byte of an outgoing message.
    #[inline]
    pub(super) fn mark_outgoing(&self, place: usize, mark: u8) {
        let last = self.places.outgoing_offset_bytes(place) + self.places.len_bytes - 1;
        self.region.store_byte_relaxed(last, mark);
    }

    /// The last byte of an outgoing place, where READs put theirs.
    #[inline]
    pub(super) fn last_outgoing(&self, place: usize) -> u8 {
        let last = self.places.outgoing_offset_bytes(place) + self.places.len_bytes - 1;
        self.region.load_byte_acquire(last)
    }

    /// The first word of an outgoing place, where atomics put what they found.
    #[inline]
    pub(super) fn word_outgoing(&self, place: usize) -> u64 {
        self.region.load_acquire(self.places.outgoing_offset_bytes(place))
    }

    /// The last byte of an incoming message.
    #[inline]
    pub(super) fn last_incoming(&self, place: usize) -> u8 {
        let last = self.places.incoming_offset_bytes(place) + self.places.len_bytes - 1;
        self.region.load_byte_acquire(last)
    }

    /// The first word of the first incoming place, where atomics work.
    pub(super) fn first_word_incoming(&self) -> u64 {
        self.region.load_acquire(self.places.incoming_offset_bytes(0))
    }
}

impl Places {
    fn headroom_bytes(&self) -> usize {
        if self.with_grh { HEADROOM_BYTES } else { 0 }
    }

    /// From one place to the next.
    pub(super) fn stride_bytes(&self) -> usize {
        (self.headroom_bytes() + self.len_bytes).next_multiple_of(64)
    }

    /// From the start of the region to a message.
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
