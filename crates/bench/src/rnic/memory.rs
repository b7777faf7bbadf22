//! An end's registered memory: places for incoming messages, then places for outgoing ones.

use farcall_verbs::{Access, ProtectionDomain, RawMr, Sge};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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
    region: Box<dyn RawMr>,
    places: Places,
}

impl Memory {
    pub(super) fn new(
        pd: &dyn ProtectionDomain,
        places: Places,
        access: Access,
    ) -> farcall_verbs::Result<Self> {
        let incoming_len_bytes = places.incoming_len_bytes();
        let len_bytes = incoming_len_bytes + places.outgoing * places.stride_bytes();
        let region = pd.alloc_mr(len_bytes.next_multiple_of(PAGE_LEN_BYTES), access)?;
        // SAFETY: the region is at least this long, and no peer has its key yet.
        unsafe { region.addr().write_bytes(FILL, incoming_len_bytes) };
        Ok(Self { region, places })
    }

    pub(super) fn region(&self) -> &dyn RawMr {
        &*self.region
    }

    pub(super) fn places(&self) -> Places {
        self.places
    }

    fn incoming(&self, place: usize) -> *mut u8 {
        debug_assert!(place < self.places.incoming);
        // SAFETY: `new` made room for that many places of this stride.
        unsafe { self.region.addr().add(self.places.incoming_offset_bytes(place)) }
    }

    fn outgoing(&self, place: usize) -> *mut u8 {
        debug_assert!(place < self.places.outgoing);
        let offset_bytes = self.places.incoming_len_bytes() + place * self.places.stride_bytes();
        // SAFETY: `new` made room for that many places of this stride.
        unsafe { self.region.addr().add(offset_bytes) }
    }

    fn sge(&self, start: *mut u8, len_bytes: usize) -> Sge {
        Sge { addr: start as u64, length: len_bytes as u32, lkey: self.region.lkey() }
    }

    /// An outgoing message; of READs and atomics, where the result comes.
    pub(super) fn outgoing_sge(&self, place: usize) -> Sge {
        self.sge(self.outgoing(place), self.places.len_bytes)
    }

    /// An incoming message, to be sent on from where it lies.
    pub(super) fn incoming_sge(&self, place: usize) -> Sge {
        self.sge(self.incoming(place), self.places.len_bytes)
    }

    /// Where a receive puts its message, which then lies where [`Self::incoming_sge`] says.
    pub(super) fn receive_sge(&self, place: usize) -> Sge {
        if self.places.with_grh {
            // SAFETY: the headroom in front of the message is longer.
            let start = unsafe { self.incoming(place).sub(GRH_LEN_BYTES) };
            self.sge(start, GRH_LEN_BYTES + self.places.len_bytes)
        } else {
            self.incoming_sge(place)
        }
    }

    /// Sets the last byte of an outgoing message.
    #[inline]
    pub(super) fn mark_outgoing(&self, place: usize, mark: u8) {
        // SAFETY: inside the place, which no peer writes.
        unsafe { self.outgoing(place).add(self.places.len_bytes - 1).write(mark) };
    }

    /// The last byte of an outgoing place, where READs put theirs.
    #[inline]
    pub(super) fn last_outgoing(&self, place: usize) -> u8 {
        // SAFETY: inside the place.
        unsafe { self.outgoing(place).add(self.places.len_bytes - 1).read_volatile() }
    }

    /// The first word of an outgoing place of at least 8 bytes, where atomics put what they found.
    #[inline]
    pub(super) fn word_outgoing(&self, place: usize) -> u64 {
        debug_assert!(self.places.len_bytes >= 8);
        // SAFETY: inside the place, which starts at a multiple of 64.
        unsafe { self.outgoing(place).cast::<u64>().read_volatile() }
    }

    /// The last byte of an incoming message, as an atomic, because the peer writes it.
    #[inline]
    pub(super) fn last_incoming(&self, place: usize) -> u8 {
        // SAFETY: inside the region, which lives as long as `self`; this end touches the byte only as an atomic while
        // the peer may write it.
        let last = unsafe { AtomicU8::from_ptr(self.incoming(place).add(self.places.len_bytes - 1)) };
        last.load(Ordering::Acquire)
    }

    /// The first word of the first incoming place, where atomics work.
    pub(super) fn first_word_incoming(&self) -> u64 {
        // SAFETY: a region is at least a page, its start and the headroom are aligned, and peers touch the word atomically.
        unsafe { AtomicU64::from_ptr(self.incoming(0).cast()) }.load(Ordering::Acquire)
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

    fn incoming_len_bytes(&self) -> usize {
        (self.incoming * self.stride_bytes()).next_multiple_of(PAGE_LEN_BYTES)
    }
}
