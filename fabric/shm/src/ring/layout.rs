//! Layout of a queue pair's inbound segment.

use farcall_verbs::Sge;
use farcall_verbs::{Error, Result};

use crate::SharedMem;
use crate::sync::atomic::Ordering::Relaxed;

/// Length of a slot in bytes. A record occupies complete slots; they are small so that a cache line holds several short
/// messages.
pub const SLOT_BYTES: usize = 16;

const MAGIC: u64 = u64::from_le_bytes(*b"farcqp01");
const AT_MAGIC: usize = 0;
const AT_RING_SLOTS: usize = 8;
const AT_RQ_DEPTH: usize = 16;
const AT_RECV_SGE: usize = 24;
const AT_SHARED: usize = 32;

/// Written by the owner, rarely: the peer from which it accepts requests (see `qp::accept`). For datagrams: 0 means
/// closed.
pub const ACCEPT: usize = 64;
/// Written by the owner, rarely: the code of its RNR NAK timer.
pub const RNR_TIMER: usize = 72;
/// Written by the owner, rarely: 1 while it requests notification of the first message, before it is ready to send.
pub const GREETING: usize = 80;
/// Written by the owner, rarely: receives with smaller sequence numbers than this may have memory that is not writable
/// under their keys. For these the initiator places the payload directly, which checks the keys, instead of sending it
/// inside the ring.
pub const UNCHECKED_RECEIVES: usize = 88;
/// Written by the owner: number of slots consumed.
pub const HEAD: usize = 128;
/// Written by the owner: number of receives posted since the segment was created. For datagrams: number of records
/// taken out of the ring.
pub const RQ_POSTED: usize = 136;
/// Written by the owner, if its receives are shared: number of messages accepted. The initiator changes it once, to
/// withdraw the messages that were not accepted yet; the owner then accepts no more. Both therefore use compare and
/// exchange.
pub const TAKEN: usize = 144;
/// Mask of the count in `TAKEN`.
pub const TAKEN_COUNT: u64 = WITHDRAWN - 1;
/// The initiator's withdrawal mark in `TAKEN`.
pub const WITHDRAWN: u64 = 1 << 63;
/// Written by the owner, if its receives are shared: number, from 1, of the message that found no receive (RNR NAK).
pub const RNR: usize = 152;
/// Written by the owner, if its receives are shared: number of the message that it rejected, followed by eight bits
/// with the status of that request's completion at the initiator.
pub const NAK: usize = 160;
/// Written by the owner, if its receives are shared: number of buffers granted for large messages.
pub const OFFERED: usize = 168;
/// Written by the initiator around every access to the owner's memory: the hazard (see [`crate::hazard`]).
pub const HAZARD: usize = 192;
/// Written by the initiator, rarely: it waits for a receive or for ring space. For datagrams: it sends no more.
pub const WANT: usize = 256;
/// Written by the initiator, once, before its request fails: the access that was refused. 0 if none was.
pub const VIOLATION: usize = 264;
const ADVERTS: usize = 320;

// One writer per cache line; fields written with every message are separate from those written rarely.
const _: () = {
    const LINE_BYTES: usize = 64;
    const fn are_in_line(line: usize, offsets: &[usize]) -> bool {
        let mut i = 0;
        while i < offsets.len() && offsets[i] / LINE_BYTES == line && offsets[i].is_multiple_of(8) {
            i += 1;
        }
        i == offsets.len()
    }
    assert!(are_in_line(0, &[AT_MAGIC, AT_RING_SLOTS, AT_RQ_DEPTH, AT_RECV_SGE, AT_SHARED]));
    assert!(are_in_line(1, &[ACCEPT, RNR_TIMER, GREETING, UNCHECKED_RECEIVES]));
    assert!(are_in_line(2, &[HEAD, RQ_POSTED, TAKEN, RNR, NAK, OFFERED]));
    assert!(are_in_line(3, &[HAZARD]));
    assert!(are_in_line(4, &[WANT, VIOLATION]));
    assert!(are_in_line(5, &[ADVERTS]) && ADVERTS.is_multiple_of(LINE_BYTES));
};

/// Length in bytes of one advertised scatter element: address, then length and key.
const ADVERT_BYTES: usize = 16;

/// Returns the number of scatter elements of an advertised receive: at least one; a queue pair has at most 16.
fn of_sges(max_sge: u32) -> u8 {
    max_sge.clamp(1, 64) as u8
}

/// Sizes of an inbound segment, which determine all of its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of slots in the ring, a power of two.
    pub ring_slots: u32,
    /// Number of receives in the queue, a power of two.
    pub rq_depth: u32,
    /// Scatter elements per receive.
    pub recv_sge: u8,
    /// Whether receives are shared with other queue pairs: then none is advertised, and the owner matches messages to
    /// receives.
    pub shared: bool,
}

impl Layout {
    /// Returns the layout for a receive queue of at least `max_recv_wr`. There are 256 bytes of ring per receive, so
    /// that small messages fit into the ring; one slot per receive is always left for messages that are placed
    /// directly.
    pub fn new(max_recv_wr: u32, max_recv_sge: u32) -> Self {
        let rq_depth = max_recv_wr.max(1).next_power_of_two();
        Self {
            ring_slots: (16 * rq_depth).max(256),
            rq_depth,
            recv_sge: of_sges(max_recv_sge),
            shared: false,
        }
    }

    /// Returns the layout for shared receives: one buffer for a large message at a time, and a ring of 32 KiB for small
    /// ones.
    pub fn for_shared(max_sge: u32) -> Self {
        Self { ring_slots: 2048, rq_depth: 1, recv_sge: of_sges(max_sge), shared: true }
    }

    /// Returns the layout for datagrams of at most `max_bytes` from one sender. It is like `new`, but all payload is in
    /// the ring. The ring holds three datagrams of maximum length, so that one always fits into an empty ring.
    pub fn for_datagrams(max_recv_wr: u32, max_bytes: usize) -> Self {
        let least = (3 * super::slots_for(max_bytes) as u32).next_power_of_two();
        let wished = 16 * max_recv_wr.max(1).next_power_of_two();
        Self { ring_slots: wished.clamp(least, 4 * least), rq_depth: 1, recv_sge: 1, shared: false }
    }

    /// Offset of the first slot.
    #[inline]
    pub fn ring_at(&self) -> usize {
        (ADVERTS + self.rq_depth as usize * usize::from(self.recv_sge) * ADVERT_BYTES).next_multiple_of(64)
    }

    /// Returns the length of the segment in bytes.
    pub fn len_bytes(&self) -> usize {
        self.ring_at() + self.ring_slots as usize * SLOT_BYTES
    }

    /// Returns the offset of element `sge` of the receive with sequence number `seq`.
    #[inline]
    pub fn advert_at(&self, seq: u64, sge: u8) -> usize {
        let receive = seq as usize & (self.rq_depth as usize - 1);
        ADVERTS + (receive * usize::from(self.recv_sge) + usize::from(sge)) * ADVERT_BYTES
    }

    /// Publishes the scatter list of the receive with sequence number `seq`.
    #[inline]
    pub fn write_advert(&self, mem: &SharedMem, seq: u64, sges: &[Sge]) {
        let first = self.advert_at(seq, 0);
        for i in 0..usize::from(self.recv_sge) {
            let sge = sges.get(i).copied().unwrap_or_default();
            let at = first + i * ADVERT_BYTES;
            mem.store(at, sge.addr, Relaxed);
            mem.store(at + 8, u64::from(sge.length) | u64::from(sge.lkey) << 32, Relaxed);
        }
    }

    /// Writes the constant header of a new segment.
    pub fn write_header(&self, mem: &SharedMem) {
        mem.store(AT_RING_SLOTS, self.ring_slots.into(), Relaxed);
        mem.store(AT_RQ_DEPTH, self.rq_depth.into(), Relaxed);
        mem.store(AT_RECV_SGE, self.recv_sge.into(), Relaxed);
        mem.store(AT_SHARED, self.shared.into(), Relaxed);
        mem.store(AT_MAGIC, MAGIC, Relaxed);
    }

    /// Reads and validates the header of a peer's segment.
    ///
    /// # Errors
    /// Returns an error if the segment belongs to another version, or its sizes are invalid.
    pub fn read_header(mem: &SharedMem) -> Result<Self> {
        const OP: &str = "read a peer's queue pair segment";
        if mem.len_bytes() < ADVERTS || mem.load(AT_MAGIC, Relaxed) != MAGIC {
            return Err(Error::invalid(OP, "bad magic: another version or a broken peer"));
        }
        let [slots, depth, sges] = [AT_RING_SLOTS, AT_RQ_DEPTH, AT_RECV_SGE].map(|at| mem.load(at, Relaxed));
        let sane = slots.is_power_of_two()
            && depth.is_power_of_two()
            && (256..=1 << 24).contains(&slots)
            && depth <= 1 << 20
            && (1..=64).contains(&sges);
        let layout = Self {
            ring_slots: slots as u32,
            rq_depth: depth as u32,
            recv_sge: sges as u8,
            shared: mem.load(AT_SHARED, Relaxed) != 0,
        };
        if sane && layout.len_bytes() <= mem.len_bytes() {
            return Ok(layout);
        }
        let what = format!("impossible sizes: {slots} slots, {depth} receives of {sges} elements");
        Err(Error::invalid(OP, what))
    }
}
