//! The receiving side: what comes out of the senders' rings meets the posted receives.

use std::sync::atomic::Ordering::{Acquire, Release};

use farcall_shm::copy_out;
use farcall_shm::ring::{Consumer, Kind, RQ_POSTED, Record, WANT, WITH_IMM};
use farcall_verbs::{Sge, Wc, WcFlags, WcOpcode, WcStatus};

use super::{DatagramCore, Foreign, GRH_BYTES, MAX_DATAGRAM_BYTES, Receives, Route};
use crate::host::qp::{scatter_bytes, scatter_from};

/// Datagrams that one look at a ring drops at most.
const DROPS_A_TURN: usize = 256;

/// The receiving end of one sender's ring.
pub(super) struct Inlet {
    consumer: Consumer,
    src_qpn: u32,
    /// Records taken out.
    taken: u64,
    /// When it last brought something, in turns of its receiver.
    last_used: u64,
    /// Its sender wrote something impossible.
    broken: bool,
    /// Its sender has ended, or has a newer ring.
    ended: bool,
}

impl Inlet {
    pub(super) fn new(consumer: Consumer, src_qpn: u32) -> Self {
        Self { consumer, src_qpn, taken: 0, last_used: 0, broken: false, ended: false }
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether nothing will come out of it any more.
    pub(super) fn is_finished(&self) -> bool {
        let ended = self.ended || self.broken || self.consumer.memory().load(WANT, Acquire) != 0;
        // In this order: what the sender published, it published before it said that it has ended.
        ended && (self.broken || !self.consumer.has_record())
    }

    fn has_record(&self) -> bool {
        !self.broken && self.consumer.has_record()
    }
}

/// What became of a record.
enum Outcome {
    Delivered(Wc),
    NoReceive,
    TooLong,
}

/// What the thread that polls the receive completion queue works on.
pub(super) struct Receiver {
    receives: Receives,
    inlets: Vec<Option<Inlet>>,
    turns: u64,
    /// Receives that datagrams took.
    taken: u64,
}

impl Receiver {
    pub(super) fn new(receives: Receives) -> Self {
        Self { receives, inlets: Vec::new(), turns: 0, taken: 0 }
    }

    /// Puts a ring at an index.
    pub(super) fn insert(&mut self, at: usize, inlet: Inlet) {
        if self.inlets.len() <= at {
            self.inlets.resize_with(at + 1, || None);
        }
        // A newcomer was not used longest of all, though it has brought nothing yet.
        self.inlets[at] = Some(Inlet { last_used: self.turns, ..inlet });
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.inlets[at] = None;
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Inlet> {
        self.inlets.get_mut(at)?.as_mut()
    }

    /// The ring that is missed least: an empty one before one that holds something, then the least recently used.
    pub(super) fn least_used(&self) -> Option<usize> {
        let used = |inlet: &Inlet| (inlet.has_record(), inlet.last_used);
        let inlets = self.inlets.iter().enumerate();
        inlets.filter_map(|(at, inlet)| Some((used(inlet.as_ref()?), at))).min().map(|(_, at)| at)
    }

    pub(super) fn has_record(&self, at: usize) -> bool {
        matches!(self.inlets.get(at), Some(Some(inlet)) if inlet.has_record())
    }

    /// Delivers what has come through one ring.
    #[inline]
    pub(super) fn poll(&mut self, core: &DatagramCore, at: usize, wc: &mut [Wc]) -> usize {
        let Some(Some(inlet)) = self.inlets.get_mut(at) else { return 0 };
        if !inlet.has_record() {
            return 0;
        }
        self.turns += 1;
        inlet.last_used = self.turns;
        let (mut delivered, mut dropped) = (0, 0);
        while delivered < wc.len() && dropped < DROPS_A_TURN {
            let record = match inlet.consumer.peek() {
                Ok(Some(record)) if is_datagram(&record) => record,
                Ok(None) => break,
                _ => {
                    inlet.broken = true;
                    break;
                }
            };
            // SAFETY: the receiver is worked by one thread at a time (`BiasedLock`).
            match unsafe { deliver(core, &self.receives, inlet, &record) } {
                Outcome::Delivered(completion) => {
                    core.stats.received.increment();
                    core.stats.bytes_received.add(record.len_bytes.into());
                    wc[delivered] = completion;
                    delivered += 1;
                }
                Outcome::NoReceive => {
                    core.stats.receive_dropped_no_receive.increment();
                    dropped += 1;
                }
                Outcome::TooLong => {
                    core.stats.receive_dropped_too_long.increment();
                    dropped += 1;
                }
            }
            inlet.consumer.advance(&record);
            inlet.taken += 1;
        }
        inlet.consumer.publish_head();
        self.taken += delivered as u64;
        core.board.set_taken(self.taken);
        // The board first, see `Outlet::renew_credit`.
        inlet.consumer.memory().store(RQ_POSTED, inlet.taken, Release);
        core.askers.tell(|asker| asker.at == at);
        delivered
    }

    /// Delivers a datagram that came from another host; `None` if it was dropped.
    pub(super) fn deliver_foreign(&mut self, core: &DatagramCore, datagram: &Foreign<'_>) -> Option<Wc> {
        let Foreign { header, src_qpn, imm_be, payload } = *datagram;
        let arrived = Arrived { len: payload.len(), src_qpn, sl: 0, imm_be };
        let put = |sges: &[Sge]| {
            // SAFETY: the receive's memory is the poster's promise until this completion is polled, and its keys were
            // checked; the payload is a slice.
            unsafe {
                scatter_bytes(header, sges);
                scatter_from(payload.as_ptr(), payload.len(), GRH_BYTES, sges);
            }
        };
        // SAFETY: the receiver is worked by one thread at a time (`BiasedLock`).
        match unsafe { place(core, &self.receives, arrived, put) } {
            Outcome::Delivered(completion) => {
                core.stats.received.increment();
                core.stats.bytes_received.add(payload.len() as u64);
                self.taken += 1;
                core.board.set_taken(self.taken);
                return Some(completion);
            }
            Outcome::NoReceive => core.stats.receive_dropped_no_receive.increment(),
            Outcome::TooLong => core.stats.receive_dropped_too_long.increment(),
        }
        None
    }

    /// Returns posted receives, in the error state.
    pub(super) fn flush(&mut self, core: &DatagramCore, wc: &mut [Wc]) -> usize {
        let mut flushed = 0;
        while flushed < wc.len()
            // SAFETY: as in `poll`.
            && let Some(wr_id) = unsafe { self.receives.take_own() }
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

/// Puts a datagram, behind its header, into the oldest receive. One that is too short stays posted (IBA 9.9.3, class
/// D).
///
/// # Safety
/// One thread at a time.
#[inline]
unsafe fn deliver(core: &DatagramCore, receives: &Receives, inlet: &Inlet, record: &Record) -> Outcome {
    let len = record.len_bytes as usize - Route::bytes_of(record);
    let has_imm = record.flags & WITH_IMM != 0;
    let put = |sges: &[Sge]| {
        let payload = inlet.consumer.memory().range(record.payload_at, record.len_bytes as usize);
        let mut route = [0; Route::BYTES];
        // SAFETY: inside of the record, as `range` checked.
        unsafe { copy_out(route.as_mut_ptr(), payload.add(len), Route::bytes_of(record)) };
        let header = Route::from_bytes(route).header(&core.host.process.table, len, has_imm);
        // SAFETY: the receive's memory is the poster's promise until this completion is polled, its keys were checked;
        // `range` checks the ring's bounds.
        unsafe {
            scatter_bytes(&header, sges);
            scatter_from(payload, len, GRH_BYTES, sges);
        }
    };
    let arrived =
        Arrived { len, src_qpn: inlet.src_qpn, sl: record.flags >> 4, imm_be: has_imm.then_some(record.imm) };
    // SAFETY: the caller's promise.
    unsafe { place(core, receives, arrived, put) }
}

/// What a completion tells of a datagram.
struct Arrived {
    len: usize,
    src_qpn: u32,
    sl: u8,
    imm_be: Option<u32>,
}

/// Has a datagram `put` into the oldest receive.
///
/// # Safety
/// One thread at a time.
#[inline]
unsafe fn place(
    core: &DatagramCore,
    receives: &Receives,
    arrived: Arrived,
    put: impl FnOnce(&[Sge]),
) -> Outcome {
    let fill = |wr_id, sges: &[Sge]| {
        if sges.iter().map(|sge| sge.length as usize).sum::<usize>() < GRH_BYTES + arrived.len {
            return None;
        }
        if !receives.allows(core, sges, (GRH_BYTES + arrived.len) as u64) {
            return Some((wr_id, WcStatus::LOC_PROT_ERR));
        }
        put(sges);
        Some((wr_id, WcStatus::SUCCESS))
    };
    // SAFETY: the caller's promise.
    match unsafe { receives.take(fill) } {
        None => Outcome::NoReceive,
        Some(None) => Outcome::TooLong,
        Some(Some((wr_id, status))) => {
            let mut wc = Wc::ended(wr_id, core.qpn, WcOpcode::RECV, status);
            wc.byte_len = (GRH_BYTES + arrived.len) as u32;
            wc.src_qp = arrived.src_qpn;
            wc.sl = arrived.sl;
            wc.wc_flags = WcFlags::GRH;
            if let Some(imm_be) = arrived.imm_be {
                wc.imm_data_be = imm_be;
                wc.wc_flags |= WcFlags::WITH_IMM;
            }
            Outcome::Delivered(wc)
        }
    }
}
