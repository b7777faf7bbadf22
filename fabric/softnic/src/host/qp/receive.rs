//! The receive side of a queue pair: posted receives, and the records of the peer that meet them.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use farcall_shm::ring::{self, Consumer, Garbage, Kind, Layout, Record};
use farcall_shm::{hazard, notify};
use farcall_verbs::{AsyncEventKind, QpState, Sge, Wc, WcFlags, WcOpcode, WcStatus};

use super::QpCore;
use super::transfer::scatter_from_ring;
use crate::host::flight::Event;

/// Posted receives: a private ring from the thread that posts to the thread that polls. On one cache line.
#[repr(align(64))]
pub(crate) struct RecvQueue {
    depth: u64,
    sges_per_wr: usize,
    /// A receive is an element that holds its `wr_id`, the number of its elements and, in place of a key, whether these
    /// must be checked; then room for these.
    slots: Box<[UnsafeCell<Sge>]>,
    /// A bit for each key that was posted, by its hash; keys share bits.
    posted_keys: AtomicU64,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: as `WcRing`: what lies between head and tail is the consumer's, the rest the producer's.
unsafe impl Sync for RecvQueue {}
// SAFETY: `Sge` is plain data.
unsafe impl Send for RecvQueue {}

impl RecvQueue {
    pub(crate) fn new(layout: &Layout) -> Self {
        // With shared receives the pair has none of its own: it is always full, and empty.
        let depth = if layout.shared { 0 } else { u64::from(layout.rq_depth) };
        let sges_per_wr = usize::from(layout.recv_sge);
        let elements = depth as usize * (1 + sges_per_wr);
        Self {
            depth,
            sges_per_wr,
            posted_keys: AtomicU64::new(0),
            slots: (0..elements).map(|_| UnsafeCell::new(Sge::default())).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }

    #[inline]
    fn slot(&self, seq: u64) -> &[UnsafeCell<Sge>] {
        let len = 1 + self.sges_per_wr;
        &self.slots[(seq & (self.depth - 1)) as usize * len..][..len]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.tail.load(Relaxed) - self.head.load(Acquire) >= self.depth
    }

    /// Sequence number of the receive that the next message takes.
    fn oldest_seq(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// Sequence number of the next receive to be posted.
    pub(crate) fn next_seq(&self) -> u64 {
        self.tail.load(Relaxed)
    }

    /// Whether a receive with an element of this key may have been posted.
    pub(crate) fn may_hold(&self, lkey: u32) -> bool {
        self.posted_keys.load(Relaxed) & key_bit(lkey) != 0
    }

    /// Adds a receive; `must_check`: its elements are checked when a message meets it. Returns the bits of keys that
    /// none before had.
    ///
    /// # Safety
    /// One thread at a time, only if not full, with at most `sges_per_wr` elements.
    #[inline]
    pub(crate) unsafe fn push(&self, wr_id: u64, sges: &[Sge], must_check: bool) -> u64 {
        let tail = self.tail.load(Relaxed);
        let [header, elements @ ..] = self.slot(tail) else { return 0 };
        // SAFETY: the slot is the producer's until `tail` moves.
        unsafe { *header.get() = Sge { addr: wr_id, length: sges.len() as u32, lkey: must_check.into() } };
        let known_keys = self.posted_keys.load(Relaxed);
        let mut keys = known_keys;
        for (cell, element) in elements.iter().zip(sges) {
            keys |= key_bit(element.lkey);
            // SAFETY: as above.
            unsafe { *cell.get() = *element };
        }
        if keys != known_keys {
            self.posted_keys.store(keys, Relaxed);
        }
        self.tail.store(tail + 1, Release);
        keys & !known_keys
    }

    /// The oldest receive, given to `work` and then removed.
    ///
    /// # Safety
    /// One thread at a time.
    #[inline]
    pub(crate) unsafe fn pop<R>(&self, work: impl FnOnce(u64, &[Sge]) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        unsafe { self.pop_if(|wr_id, sges, _| Some(work(wr_id, sges))) }
            .map(|result| result.expect("was given"))
    }

    /// The oldest receive, given to `work` with whether its elements must be checked, and then removed, if `work` made
    /// something of it.
    ///
    /// # Safety
    /// One thread at a time.
    #[inline]
    pub(crate) unsafe fn pop_if<R>(
        &self,
        work: impl FnOnce(u64, &[Sge], bool) -> Option<R>,
    ) -> Option<Option<R>> {
        let head = self.head.load(Relaxed);
        if self.tail.load(Acquire) == head {
            return None;
        }
        let slot = self.slot(head);
        // SAFETY: the slot is the consumer's until `head` moves; `UnsafeCell<Sge>` has the layout of `Sge`.
        let elements = unsafe { std::slice::from_raw_parts(slot.as_ptr().cast::<Sge>(), slot.len()) };
        let (header, sges) = elements.split_first().expect("a slot begins with its header");
        let result = work(header.addr, &sges[..header.length as usize], header.lkey != 0);
        if result.is_some() {
            self.head.store(head + 1, Release);
        }
        Some(result)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tail.load(Acquire) == self.head.load(Relaxed)
    }
}

/// The bit of a key among those of a queue.
#[inline]
pub(crate) const fn key_bit(lkey: u32) -> u64 {
    // The upper bits of a product depend on all bits of the key.
    1 << (lkey.wrapping_mul(0x9E37_79B9) >> 26)
}

/// Puts into the completion of a receive what it says of the message.
#[inline]
pub(super) fn describe(completion: &mut Wc, core: &QpCore, record: &Record) {
    completion.byte_len = record.len_bytes;
    completion.src_qp = core.dest_qpn();
    if record.kind == Kind::WriteImm {
        completion.opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    }
    if record.flags & ring::WITH_IMM != 0 {
        completion.imm_data_be = record.imm;
        completion.wc_flags = WcFlags::WITH_IMM;
    }
}

/// What the thread that polls the receive completion queue works on.
#[repr(C)]
pub(crate) struct RecvSide {
    consumer: Consumer,
    queue: Arc<RecvQueue>,
    /// A record could not be met or believed: what follows it is not looked at.
    broken: bool,
    /// Regions that had been revoked at the last look.
    revocations: u64,
    /// Receives before this one were posted before a region was revoked: it may have been theirs.
    doubtful_until: u64,
}

impl RecvSide {
    pub(crate) fn new(consumer: Consumer, queue: Arc<RecvQueue>) -> Self {
        Self { consumer, queue, broken: false, revocations: 0, doubtful_until: 0 }
    }

    /// Delivers nothing any more.
    pub(crate) fn end(&mut self) {
        self.broken = true;
    }

    /// Whether a poll would find something.
    pub(crate) fn has_something(&self, core: &QpCore) -> bool {
        (self.consumer.has_record() && !self.broken)
            || (core.state() == QpState::Err && !self.queue.is_empty())
    }

    /// Delivers messages that have come, and nothing that is flushed.
    #[inline]
    pub(crate) fn poll_records(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        if self.consumer.has_record() && !self.broken { self.deliver(core, wc) } else { 0 }
    }

    /// Delivers what has come.
    #[inline]
    pub(crate) fn poll(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut taken = self.poll_records(core, wc);
        let state = core.state();
        if state != QpState::Rts {
            taken = self.poll_aside(core, state, wc, taken);
        }
        taken
    }

    /// The rest of a poll in another state than RTS.
    #[cold]
    fn poll_aside(&mut self, core: &QpCore, state: QpState, wc: &mut [Wc], taken: usize) -> usize {
        match state {
            QpState::Rtr if taken > 0 => {
                core.tell_establishment();
                taken
            }
            QpState::Err if taken < wc.len() => taken + self.flush(core, &mut wc[taken..]),
            _ => taken,
        }
    }

    fn deliver(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut taken = 0;
        let revocations = core.host.process.regions.revocations();
        if revocations != self.revocations {
            self.revocations = revocations;
            self.doubtful_until = self.queue.next_seq();
        }
        while taken < wc.len() && !self.broken {
            match self.consumer.peek() {
                Ok(None) => break,
                Ok(Some(record)) if matches!(record.kind, Kind::AccessNak | Kind::InvalidNak) => {
                    self.break_off(
                        core,
                        match record.kind {
                            Kind::AccessNak => AsyncEventKind::QpAccessErr,
                            _ => AsyncEventKind::QpReqErr,
                        },
                    );
                }
                Ok(Some(record)) => match self.complete(core, &record) {
                    Ok(completion) => {
                        self.consumer.advance(&record);
                        wc[taken] = completion;
                        taken += 1;
                        if !completion.status.is_success() {
                            self.broken = true;
                            core.fail(None);
                        }
                    }
                    Err(Garbage) => self.break_off(core, AsyncEventKind::QpReqErr),
                },
                Err(Garbage) => self.break_off(core, AsyncEventKind::QpReqErr),
            }
        }
        if self.consumer.publish_head() {
            self.give_credit(core);
        }
        taken
    }

    /// Matches a record with the oldest receive.
    #[inline]
    fn complete(&self, core: &QpCore, record: &Record) -> Result<Wc, Garbage> {
        let consumer = &self.consumer;
        let is_doubtful = self.queue.oldest_seq() < self.doubtful_until;
        // SAFETY: the receive side is worked by one thread at a time (`BiasedLock`).
        let completion = unsafe {
            self.queue.pop_if(|wr_id, sges, must_check| {
                if (must_check || is_doubtful)
                    && record.kind == Kind::Send
                    && !core.allows_receive(sges, record.len_bytes)
                {
                    return Some(Wc::ended(wr_id, core.qpn, WcOpcode::RECV, WcStatus::LOC_PROT_ERR));
                }
                let fits = match record.kind {
                    // SAFETY: the receive's memory is the poster's promise until this completion is polled; its keys
                    // were checked when it was posted, and no region was revoked since, or they were checked just now.
                    Kind::Send => scatter_from_ring(consumer.memory(), record, sges),
                    Kind::SendPlaced => {
                        u64::from(record.len_bytes) <= sges.iter().map(|sge| u64::from(sge.length)).sum()
                    }
                    Kind::TooLong | Kind::BadReceive => false,
                    _ => true,
                };
                let status = match record.kind {
                    _ if fits => WcStatus::SUCCESS,
                    Kind::BadReceive => WcStatus::LOC_PROT_ERR,
                    _ => WcStatus::LOC_LEN_ERR,
                };
                Some(Wc::ended(wr_id, core.qpn, WcOpcode::RECV, status))
            })
        };
        let mut completion = completion.flatten().ok_or(Garbage)?;
        if completion.status.is_success() {
            core.stats.messages_received.increment();
            core.stats.bytes_received.add(record.len_bytes.into());
        } else {
            core.stats.receive_errors.increment();
            core.stats.record(Event::ReceiveFailed as u64, completion.status.0.into());
        }
        describe(&mut completion, core, record);
        Ok(completion)
    }

    /// In the error state: returns posted receives, but not while the peer may still be placing into one of them.
    #[cold]
    fn flush(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        if !core.is_closed() {
            // The state shows the error a moment before the pair is closed; who closes it announces it.
            return 0;
        }
        let peer_is_inside = hazard::current(self.consumer.memory()) != 0;
        if peer_is_inside && !core.is_quiesced() {
            core.set_flush_waits(true);
            return 0;
        }
        core.set_flush_waits(false);
        // What was published between the last look and the end of the hazard succeeded for its sender: it is no flush.
        let mut taken = 0;
        if self.consumer.has_record() && !self.broken {
            taken = self.deliver(core, wc);
        }
        while taken < wc.len() {
            // SAFETY: as in `complete`.
            let flushed = unsafe {
                self.queue.pop(|wr_id, _| Wc::ended(wr_id, core.qpn, WcOpcode::RECV, WcStatus::WR_FLUSH_ERR))
            };
            let Some(flushed) = flushed else { break };
            wc[taken] = flushed;
            taken += 1;
        }
        taken
    }

    #[cold]
    fn break_off(&mut self, core: &QpCore, kind: AsyncEventKind) {
        self.broken = true;
        core.fail(Some(kind));
    }

    /// Tells a peer that waits for it that there is room again.
    #[inline]
    fn give_credit(&self, core: &QpCore) {
        if notify::is_requested(self.consumer.memory()) {
            core.give_credit();
        }
    }
}
