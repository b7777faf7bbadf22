//! Receiver side of datagrams: matches the records of the senders' rings with posted receives.

use std::sync::atomic::Ordering::{Acquire, Release};

use farcall_shm::copy_out;
use farcall_shm::ring::{Consumer, Kind, RQ_POSTED, Record, WANT, WITH_IMM};
use farcall_verbs::{Sge, Wc, WcFlags, WcOpcode, WcStatus};

use super::receiver_context::ReceiverContext;
use super::{GRH_BYTES, MAX_DATAGRAM_BYTES, Receives, RemoteDatagram, Route};
use crate::shm_transport::qp::{scatter_bytes, scatter_from};

/// Maximum number of datagrams that one poll of a ring drops.
const DROPS_PER_QUANTUM: usize = 256;

/// Receiving end of one sender's ring.
pub(super) struct RxRing {
    consumer: Consumer,
    src_qpn: u32,
    /// Number of records consumed.
    consumed: u64,
    /// Poll count of the receiver at which the ring last contained a record.
    last_used: u64,
    /// `true` if the sender wrote an invalid record.
    broken: bool,
    /// `true` if the sender has exited, or has a newer ring.
    ended: bool,
}

impl RxRing {
    pub(super) fn new(consumer: Consumer, src_qpn: u32) -> Self {
        Self { consumer, src_qpn, consumed: 0, last_used: 0, broken: false, ended: false }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns whether no more records will be delivered from it.
    pub(super) fn is_finished(&self) -> bool {
        let ended = self.ended || self.broken || self.consumer.memory().load(WANT, Acquire) != 0;
        // The order matters: the sender publishes its records before it marks the ring as ended.
        ended && (self.broken || !self.consumer.has_record())
    }

    fn has_record(&self) -> bool {
        !self.broken && self.consumer.has_record()
    }
}

/// Result of a record.
enum DeliveryOutcome {
    Delivered(Wc),
    NoReceive,
    TooLong,
}

/// State of the thread that polls the receive completion queue.
pub(super) struct Receiver {
    receives: Receives,
    rx_rings: Vec<Option<RxRing>>,
    quanta: u64,
    /// Number of receives consumed by datagrams.
    consumed: u64,
}

impl Receiver {
    pub(super) fn new(receives: Receives) -> Self {
        Self { receives, rx_rings: Vec::new(), quanta: 0, consumed: 0 }
    }

    /// Inserts a ring at an index.
    pub(super) fn insert(&mut self, at: usize, rx_ring: RxRing) {
        if self.rx_rings.len() <= at {
            self.rx_rings.resize_with(at + 1, || None);
        }
        // A new ring must not count as the least recently used one before its first datagram.
        self.rx_rings[at] = Some(RxRing { last_used: self.quanta, ..rx_ring });
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.rx_rings[at] = None;
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut RxRing> {
        self.rx_rings.get_mut(at)?.as_mut()
    }

    /// Returns the ring to evict: an empty ring rather than one that holds a record, then the least recently used.
    pub(super) fn least_used(&self) -> Option<usize> {
        let used = |rx_ring: &RxRing| (rx_ring.has_record(), rx_ring.last_used);
        let rx_rings = self.rx_rings.iter().enumerate();
        rx_rings.filter_map(|(at, rx_ring)| Some((used(rx_ring.as_ref()?), at))).min().map(|(_, at)| at)
    }

    pub(super) fn has_record(&self, at: usize) -> bool {
        matches!(self.rx_rings.get(at), Some(Some(rx_ring)) if rx_ring.has_record())
    }

    /// Delivers the datagrams that one ring holds.
    #[inline]
    pub(super) fn poll(&mut self, core: &ReceiverContext, at: usize, wc: &mut [Wc]) -> usize {
        let Some(Some(rx_ring)) = self.rx_rings.get_mut(at) else { return 0 };
        if !rx_ring.has_record() {
            return 0;
        }
        self.quanta += 1;
        rx_ring.last_used = self.quanta;
        let (mut delivered, mut dropped) = (0, 0);
        while delivered < wc.len() && dropped < DROPS_PER_QUANTUM {
            let record = match rx_ring.consumer.peek() {
                Ok(Some(record)) if is_datagram(&record) => record,
                Ok(None) => break,
                _ => {
                    rx_ring.broken = true;
                    break;
                }
            };
            // SAFETY: `&mut self` is only reachable through the `BiasedLock` around `Receiver`, which admits one thread
            // at a time, as `deliver` requires.
            match unsafe { deliver(core, &self.receives, rx_ring, &record) } {
                DeliveryOutcome::Delivered(completion) => {
                    core.stats.received.increment();
                    core.stats.bytes_received.add(record.len_bytes.into());
                    wc[delivered] = completion;
                    delivered += 1;
                }
                DeliveryOutcome::NoReceive => {
                    core.stats.receive_dropped_no_receive.increment();
                    dropped += 1;
                }
                DeliveryOutcome::TooLong => {
                    core.stats.receive_dropped_too_long.increment();
                    dropped += 1;
                }
            }
            rx_ring.consumer.advance(&record);
            rx_ring.consumed += 1;
        }
        rx_ring.consumer.publish_head();
        self.consumed += delivered as u64;
        core.status.set_consumed(self.consumed);
        // The receiver status is updated before the ring; see `TxRing::renew_credit`.
        rx_ring.consumer.memory().store(RQ_POSTED, rx_ring.consumed, Release);
        core.blocked_senders.notify(|sender| sender.at == at);
        delivered
    }

    /// Delivers a datagram that arrived from another host. Returns `None` if it was dropped.
    pub(super) fn deliver_remote(
        &mut self,
        core: &ReceiverContext,
        datagram: &RemoteDatagram<'_>,
    ) -> Option<Wc> {
        let RemoteDatagram { header, src_qpn, imm_be, payload } = *datagram;
        let received = ReceivedMessage { len: payload.len(), src_qpn, sl: 0, imm_be };
        let put = |sges: &[Sge]| {
            // SAFETY: by the contract of `RawQp::post_recv` the receive's memory is valid until this completion is
            // polled, and `deliver_message` has checked its keys. The sources are an array and a slice.
            unsafe {
                scatter_bytes(header, sges);
                scatter_from(payload.as_ptr(), payload.len(), GRH_BYTES, sges);
            }
        };
        // SAFETY: `&mut self` is only reachable through the `BiasedLock` around `Receiver`, which admits one thread at
        // a time, as `deliver_message` requires.
        match unsafe { deliver_message(core, &self.receives, received, put) } {
            DeliveryOutcome::Delivered(completion) => {
                core.stats.received.increment();
                core.stats.bytes_received.add(payload.len() as u64);
                self.consumed += 1;
                core.status.set_consumed(self.consumed);
                return Some(completion);
            }
            DeliveryOutcome::NoReceive => core.stats.receive_dropped_no_receive.increment(),
            DeliveryOutcome::TooLong => core.stats.receive_dropped_too_long.increment(),
        }
        None
    }

    /// Flushes posted receives, in the error state.
    pub(super) fn flush(&mut self, core: &ReceiverContext, wc: &mut [Wc]) -> usize {
        let mut flushed = 0;
        while flushed < wc.len()
            // SAFETY: the `BiasedLock` around `Receiver` admits one thread at a time, as `Receives::consume_own`
            // requires.
            && let Some(wr_id) = unsafe { self.receives.consume_own() }
        {
            wc[flushed] = Wc::ended(wr_id, core.qpn, WcOpcode::RECV, WcStatus::WR_FLUSH_ERR);
            flushed += 1;
        }
        core.stats.receives_flushed.add(flushed as u64);
        flushed
    }

    pub(super) fn has_receives(&self) -> bool {
        self.receives.has_own()
    }
}

fn is_datagram(record: &Record) -> bool {
    record.kind == Kind::Send
        && (Route::bytes_of(record)..=MAX_DATAGRAM_BYTES + Route::bytes_of(record))
            .contains(&(record.len_bytes as usize))
}

/// Delivers a datagram, after its header, to the oldest receive. A receive that is too short stays posted (IBA 9.9.3,
/// class D).
///
/// # Safety
/// Only one thread may call it at a time.
#[inline]
unsafe fn deliver(
    core: &ReceiverContext,
    receives: &Receives,
    rx_ring: &RxRing,
    record: &Record,
) -> DeliveryOutcome {
    let len = record.len_bytes as usize - Route::bytes_of(record);
    let has_imm = record.flags & WITH_IMM != 0;
    let put = |sges: &[Sge]| {
        let payload = rx_ring.consumer.memory().range(record.payload_at, record.len_bytes as usize);
        let mut route = [0; Route::BYTES];
        // SAFETY: `range` checked that the record is inside the ring, and `bytes_of` is at most the length of `route`.
        unsafe { copy_out(route.as_mut_ptr(), payload.add(len), Route::bytes_of(record)) };
        let header = Route::from_bytes(route).header(&core.shm.process.table, len, has_imm);
        // SAFETY: by the contract of `RawQp::post_recv` the receive's memory is valid until this completion is polled,
        // and `deliver_message` has checked its keys. `range` checked that the payload is inside the ring.
        unsafe {
            scatter_bytes(&header, sges);
            scatter_from(payload, len, GRH_BYTES, sges);
        }
    };
    let received = ReceivedMessage {
        len,
        src_qpn: rx_ring.src_qpn,
        sl: record.flags >> 4,
        imm_be: has_imm.then_some(record.imm),
    };
    // SAFETY: by the contract of this function only one thread calls it at a time, as `deliver_message` requires.
    unsafe { deliver_message(core, receives, received, put) }
}

/// Fields of a datagram's completion.
struct ReceivedMessage {
    len: usize,
    src_qpn: u32,
    sl: u8,
    imm_be: Option<u32>,
}

/// Calls `put` to copy a datagram to the oldest receive, if the datagram fits and the receive's keys are valid.
///
/// # Safety
/// Only one thread may call it at a time.
#[inline]
unsafe fn deliver_message(
    core: &ReceiverContext,
    receives: &Receives,
    received: ReceivedMessage,
    put: impl FnOnce(&[Sge]),
) -> DeliveryOutcome {
    let fill = |wr_id, sges: &[Sge]| {
        if sges.iter().map(|sge| sge.length as usize).sum::<usize>() < GRH_BYTES + received.len {
            return None;
        }
        if !receives.allows(core, sges, (GRH_BYTES + received.len) as u64) {
            return Some((wr_id, WcStatus::LOC_PROT_ERR));
        }
        put(sges);
        Some((wr_id, WcStatus::SUCCESS))
    };
    // SAFETY: by the contract of this function only one thread calls it at a time, as `Receives::take` requires.
    match unsafe { receives.consume(fill) } {
        None => DeliveryOutcome::NoReceive,
        Some(None) => DeliveryOutcome::TooLong,
        Some(Some((wr_id, status))) => {
            let mut wc = Wc::ended(wr_id, core.qpn, WcOpcode::RECV, status);
            wc.byte_len = (GRH_BYTES + received.len) as u32;
            wc.src_qp = received.src_qpn;
            wc.sl = received.sl;
            wc.wc_flags = WcFlags::GRH;
            if let Some(imm_be) = received.imm_be {
                wc.imm_data_be = imm_be;
                wc.wc_flags |= WcFlags::WITH_IMM;
            }
            DeliveryOutcome::Delivered(wc)
        }
    }
}
