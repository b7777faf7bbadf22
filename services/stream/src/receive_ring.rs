//! The ring that the peer writes, and its replacement by another one.
//!
//! The owner of a ring offers another one: a longer one if the peer keeps filling it, the first one again if no bytes
//! arrive. The peer announces the position from which on it writes there (it *switches*), so each byte has exactly one
//! position in memory. The old ring is released when all bytes before that position have been read. At most one offer
//! is in progress at a time.

use std::sync::Arc;

use farcall_link::{Region, RemoteRegion};

use crate::ring::Ring;
use crate::words::WakeAck;

pub(crate) struct ReceiveRing {
    /// The initial ring of the stream; it is never released.
    first: Arc<Region>,
    bytes: Arc<Region>,
    ring: Ring,
    next: Option<Next>,
    /// Number of the last offer.
    number: u16,
    /// Number of times that the peer filled the ring since the last offer.
    filled: u32,
    max_bytes: u64,
}

/// A ring offered to the peer.
struct Next {
    bytes: Arc<Region>,
    is_sent: bool,
    /// Position from which on the peer writes into it; `None` until the peer has announced it.
    from: Option<u64>,
}

/// Length of an offer in 64-bit words: number, address, length, key.
pub(crate) const OFFER_WORDS: usize = 4;

/// Number of times that a ring is filled before a longer one is offered.
const FILLED_MAX: u32 = 2;
/// Factor by which a ring grows.
const FACTOR: u64 = 4;

impl ReceiveRing {
    pub fn new(first: Arc<Region>, max_bytes: usize) -> Self {
        let ring = Ring { base: 0, len_bytes: first.len_bytes() as u64 };
        let max_bytes = max_bytes as u64;
        Self { bytes: Arc::clone(&first), first, ring, next: None, number: 0, filled: 0, max_bytes }
    }

    /// Returns the length in bytes of the ring that is being read.
    #[inline]
    pub const fn len_bytes(&self) -> u64 {
        self.ring.len_bytes
    }

    /// Returns the position up to which the peer may have written when `read` bytes have been read.
    #[inline]
    pub fn limit(&self, read: u64) -> u64 {
        match &self.next {
            Some(Next { from: Some(from), bytes, .. }) => from.max(&read) + bytes.len_bytes() as u64,
            _ => read.max(self.ring.base) + self.ring.len_bytes,
        }
    }

    /// Records that the peer has written up to `written` while it knew of `credited` bytes of credit.
    #[inline]
    pub fn written(&mut self, written: u64, credited: u64) {
        if self.next.is_none() {
            self.filled += u32::from(self.ring.free(written, credited) == 0);
        }
    }

    /// Returns the length in bytes of the longer ring to offer; `None` if no offer is due.
    pub fn longer_ring_bytes(&self) -> Option<usize> {
        let is_short = self.filled >= FILLED_MAX && self.ring.len_bytes < self.max_bytes;
        (is_short && self.next.is_none()).then(|| (self.ring.len_bytes * FACTOR).min(self.max_bytes) as usize)
    }

    /// Returns whether the ring is longer than the initial one.
    pub fn is_grown(&self) -> bool {
        self.next.is_none() && !Arc::ptr_eq(&self.bytes, &self.first)
    }

    /// Prepares an offer: of `longer`, or of the first ring if that is `None`.
    pub fn offer(&mut self, longer: Option<Arc<Region>>) {
        let bytes = longer.unwrap_or_else(|| Arc::clone(&self.first));
        self.number = if self.number == u16::MAX { 1 } else { self.number + 1 };
        self.next = Some(Next { bytes, is_sent: false, from: None });
        self.filled = 0;
    }

    /// Keeps the current ring for good, because no memory for a longer one is available.
    pub fn keep_current(&mut self) {
        self.max_bytes = self.ring.len_bytes;
    }

    /// Returns the offer, if it must still be sent.
    pub fn due(&self) -> Option<[u64; OFFER_WORDS]> {
        let next = self.next.as_ref().filter(|next| !next.is_sent)?;
        let RemoteRegion { addr, len_bytes, rkey } = next.bytes.remote();
        Some([self.number.into(), addr, len_bytes, rkey.into()])
    }

    /// Records that the offer was sent.
    pub fn on_offer_sent(&mut self) {
        self.next.iter_mut().for_each(|next| next.is_sent = true);
    }

    /// Returns whether an offer is in progress to which the peer has not switched yet.
    #[inline]
    pub const fn may_switch(&self) -> bool {
        matches!(self.next, Some(Next { from: None, .. }))
    }

    /// Handles the peer's announcement that it switches, or has already switched, to the offered ring. Announcements
    /// for other offers are ignored. Returns an error if the position is impossible.
    pub fn on_switch(&mut self, turn: WakeAck, read: u64, seen: u64) -> Result<(), String> {
        let limit = self.limit(read);
        let Some(next) = self.next.as_mut().filter(|next| next.from.is_none()) else { return Ok(()) };
        if turn.number != self.number {
            return Ok(());
        }
        if turn.from < seen || turn.from > limit {
            return Err(format!(
                "it takes another ring at byte {} after {seen}, not beyond {limit}",
                turn.from
            ));
        }
        next.from = Some(turn.from);
        self.change(read);
        Ok(())
    }

    /// Changes to the next ring if all bytes of this one have been read.
    #[inline]
    pub fn change(&mut self, read: u64) {
        if let Some(Next { bytes, from: Some(from), .. }) = &self.next
            && *from == read
        {
            self.ring = Ring { base: read, len_bytes: bytes.len_bytes() as u64 };
            self.bytes = Arc::clone(bytes);
            self.next = None;
        }
    }

    /// Loads the byte at a position where no byte has arrived yet. When it arrives, its cache line is then transferred
    /// together with that of the control word and not after it.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        std::hint::black_box(self.bytes.load_byte_acquire(self.ring.offset(position)));
    }

    /// Returns the contiguous bytes from `read` on: region, offset and their number, at most `most`.
    #[inline]
    pub fn contiguous(&self, read: u64, most: u64) -> (&Region, usize, usize) {
        let most = match &self.next {
            Some(Next { from: Some(from), .. }) => most.min(from - read),
            _ => most,
        };
        let (offset, len) = self.ring.contiguous(read, most);
        (&self.bytes, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{Access, MrAttr, ProtectionDomain, RawMr, Result, Revoked};
    use std::any::Any;

    struct Heap(#[expect(dead_code, reason = "what the address leads to")] Vec<u64>, MrAttr);

    impl RawMr for Heap {
        fn attr(&self) -> &MrAttr {
            &self.1
        }
        fn dereg(self: Box<Self>) -> Revoked {
            Revoked::Now
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    struct Domain;

    impl ProtectionDomain for Domain {
        fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
            let mut heap = vec![0_u64; len_bytes / 8];
            let addr = heap.as_mut_ptr().cast();
            Ok(Box::new(Heap(heap, MrAttr { addr, remote_addr: 0, len_bytes, lkey: 1, rkey: 2, access })))
        }
        unsafe fn reg_mr(&self, _: *mut u8, _: usize, _: Access) -> Result<Box<dyn RawMr>> {
            unreachable!()
        }
        fn create_qp(&self, _: &farcall_verbs::QpInitAttr<'_>) -> Result<Box<dyn farcall_verbs::RawQp>> {
            unreachable!()
        }
        fn create_srq(&self, _: &farcall_verbs::SrqInitAttr) -> Result<Box<dyn farcall_verbs::RawSrq>> {
            unreachable!()
        }
        fn create_ah(&self, _: &farcall_verbs::AhAttr) -> Result<Box<dyn farcall_verbs::AddressHandle>> {
            unreachable!()
        }
    }

    fn region(len_bytes: usize) -> Arc<Region> {
        Arc::new(Region::alloc(&Domain, len_bytes, Access::all()).unwrap())
    }

    #[test]
    fn reads_old_bytes_from_the_old_ring_and_later_from_the_new() {
        let mut ring = ReceiveRing::new(region(4_096), 1 << 20);
        assert_eq!((ring.limit(0), ring.longer_ring_bytes()), (4_096, None));
        (0..FILLED_MAX).for_each(|_| ring.written(4_096, 0));
        assert_eq!(ring.longer_ring_bytes(), Some(16_384));
        ring.offer(Some(region(16_384)));
        assert_eq!((ring.due().unwrap()[0], ring.longer_ring_bytes()), (1, None), "one offer at a time");
        ring.on_offer_sent();
        assert!(ring.due().is_none() && ring.may_switch());
        ring.on_switch(WakeAck { number: 0, from: 9 }, 1_000, 2_000).unwrap();
        assert_eq!(ring.limit(1_000), 5_096, "of another offer");
        ring.on_switch(WakeAck { number: 1, from: 1_999 }, 1_000, 2_000).unwrap_err();
        ring.on_switch(WakeAck { number: 1, from: 5_097 }, 1_000, 2_000).unwrap_err();
        ring.on_switch(WakeAck { number: 1, from: 5_000 }, 1_000, 2_000).unwrap();
        assert_eq!(ring.limit(1_000), 5_000 + 16_384);
        let at = |ring: &ReceiveRing, read, most| {
            let (region, offset, len) = ring.contiguous(read, most);
            (region.len_bytes(), offset, len)
        };
        assert_eq!(at(&ring, 4_000, 10_000), (4_096, 4_000, 96));
        assert_eq!(at(&ring, 4_096, 10_000), (4_096, 0, 904));
        ring.change(4_999);
        assert_eq!(at(&ring, 4_999, 10_000), (4_096, 903, 1));
        ring.change(5_000);
        assert_eq!(at(&ring, 5_000, 10_000), (16_384, 0, 10_000));
        assert!(ring.is_grown() && ring.limit(5_000) == 21_384);
    }

    #[test]
    fn reuses_the_first_ring_when_the_other_is_empty() {
        let mut ring = ReceiveRing::new(region(4_096), 1 << 20);
        ring.offer(Some(region(8_192)));
        ring.on_switch(WakeAck { number: 1, from: 10 }, 10, 10).unwrap();
        assert_eq!(ring.len_bytes(), 8_192);
        ring.offer(None);
        ring.on_switch(WakeAck { number: 2, from: 10 }, 10, 10).unwrap();
        assert!(ring.len_bytes() == 4_096 && !ring.is_grown());
        ring.keep_current();
        (0..9).for_each(|_| ring.written(4_106, 10));
        assert_eq!(ring.longer_ring_bytes(), None, "none could be had");
    }
}
