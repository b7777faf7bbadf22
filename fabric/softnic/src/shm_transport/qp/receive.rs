//! Receive side of a queue pair: posted receives, and the peer's records that consume them.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use farcall_shm::ring::{self, Consumer, CorruptRecord, Kind, Layout, Record};
use farcall_shm::{credit_request, hazard};
use farcall_verbs::{AsyncEventKind, QpState, Sge, Wc, WcFlags, WcOpcode, WcStatus};

use super::QpCore;
use super::transfer::scatter_from_ring;
use crate::shm_transport::flight::Event;

/// Posted receives: a private ring from the posting thread to the polling thread, on one cache line.
#[repr(align(64))]
pub(crate) struct RecvQueue {
    depth: u64,
    sges_per_wr: usize,
    /// Each receive is a header followed by space for its elements. The header is an `Sge` that holds the `wr_id`, the
    /// number of elements and, in place of a key, whether the elements must be checked.
    slots: Box<[UnsafeCell<Sge>]>,
    /// Set of posted keys: one bit for each hash value, so several keys share a bit.
    posted_keys: AtomicU64,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: the slots between `head` and `tail` belong to the consumer, the others to the producer. `push` and `pop_if`
// require one thread each, and transfer a slot by a release store that the other side loads with acquire.
unsafe impl Sync for RecvQueue {}
// SAFETY: `Sge` is plain data.
unsafe impl Send for RecvQueue {}

impl RecvQueue {
    pub(crate) fn new(layout: &Layout) -> Self {
        // A queue pair with shared receives has none of its own. With depth 0 the queue is both full and empty.
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

    /// Returns the sequence number of the receive that the next message consumes.
    fn oldest_seq(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// Returns the sequence number of the next receive to be posted.
    pub(crate) fn next_seq(&self) -> u64 {
        self.tail.load(Relaxed)
    }

    /// Returns whether a receive with an element of this key may have been posted.
    pub(crate) fn may_hold(&self, lkey: u32) -> bool {
        self.posted_keys.load(Relaxed) & key_bit(lkey) != 0
    }

    /// Adds a receive. If `must_check` is set, its elements are checked when a message arrives for it. Returns the key
    /// bits that no earlier receive had.
    ///
    /// # Safety
    /// Only one thread may call it at a time, the queue must not be full, and `sges` has at most `sges_per_wr`
    /// elements.
    #[inline]
    pub(crate) unsafe fn push(&self, wr_id: u64, sges: &[Sge], must_check: bool) -> u64 {
        let tail = self.tail.load(Relaxed);
        let [header, elements @ ..] = self.slot(tail) else { return 0 };
        // SAFETY: by the contract of this function the queue is not full, so the slot belongs to the producer until
        // `tail` is stored.
        unsafe { *header.get() = Sge { addr: wr_id, length: sges.len() as u32, lkey: must_check.into() } };
        let known_keys = self.posted_keys.load(Relaxed);
        let mut keys = known_keys;
        for (cell, element) in elements.iter().zip(sges) {
            keys |= key_bit(element.lkey);
            // SAFETY: the slot belongs to the producer until `tail` is stored.
            unsafe { *cell.get() = *element };
        }
        if keys != known_keys {
            self.posted_keys.store(keys, Relaxed);
        }
        self.tail.store(tail + 1, Release);
        keys & !known_keys
    }

    /// Passes the oldest receive to `work`, and removes it.
    ///
    /// # Safety
    /// Only one thread may call it at a time.
    #[inline]
    pub(crate) unsafe fn pop<R>(&self, work: impl FnOnce(u64, &[Sge]) -> R) -> Option<R> {
        // SAFETY: by the contract of this function the queue has one consumer at a time, as `pop_if` requires.
        unsafe { self.pop_if(|wr_id, sges, _| Some(work(wr_id, sges))) }
            .map(|result| result.expect("was given"))
    }

    /// Passes the oldest receive to `work`, together with whether its elements must be checked. Removes it if `work`
    /// returns a value.
    ///
    /// # Safety
    /// Only one thread may call it at a time.
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
        // SAFETY: the queue is not empty, so the slot belongs to the consumer until `head` is stored. `UnsafeCell<Sge>`
        // has the layout of `Sge`.
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

/// Returns the bit of a key in the set of posted keys.
#[inline]
pub(crate) const fn key_bit(lkey: u32) -> u64 {
    // The upper bits of a product depend on all bits of the key.
    1 << (lkey.wrapping_mul(0x9E37_79B9) >> 26)
}

/// Fills the completion of a receive with the properties of the message.
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

/// State of the thread that polls the receive completion queue.
#[repr(C)]
pub(crate) struct RecvSide {
    consumer: Consumer,
    queue: Arc<RecvQueue>,
    /// `true` if a record was invalid or matched no receive. Later records are not read.
    broken: bool,
    /// Number of revoked regions at the last poll.
    revocations: u64,
    /// Receives before this sequence number were posted before a region was revoked, which they may name.
    unchecked_until: u64,
}

impl RecvSide {
    pub(crate) fn new(consumer: Consumer, queue: Arc<RecvQueue>) -> Self {
        Self { consumer, queue, broken: false, revocations: 0, unchecked_until: 0 }
    }

    /// Stops all deliveries.
    pub(crate) fn end(&mut self) {
        self.broken = true;
    }

    /// Returns whether a poll would find a completion.
    pub(crate) fn may_have_completions(&self, core: &QpCore) -> bool {
        (self.consumer.has_record() && !self.broken)
            || (core.state() == QpState::Err && !self.queue.is_empty())
    }

    /// Delivers completions of received messages, but flushes nothing.
    #[inline]
    pub(crate) fn poll_records(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        if self.consumer.has_record() && !self.broken { self.deliver(core, wc) } else { 0 }
    }

    /// Delivers completions.
    #[inline]
    pub(crate) fn poll(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut taken = self.poll_records(core, wc);
        let state = core.state();
        if state != QpState::Rts {
            taken = self.poll_in_error(core, state, wc, taken);
        }
        taken
    }

    /// Completes a poll in a state other than RTS.
    #[cold]
    fn poll_in_error(&mut self, core: &QpCore, state: QpState, wc: &mut [Wc], taken: usize) -> usize {
        match state {
            QpState::Rtr if taken > 0 => {
                core.raise_comm_est();
                taken
            }
            QpState::Err if taken < wc.len() => taken + self.flush(core, &mut wc[taken..]),
            _ => taken,
        }
    }

    fn deliver(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut taken = 0;
        let revocations = core.shm.process.regions.revocations();
        if revocations != self.revocations {
            self.revocations = revocations;
            self.unchecked_until = self.queue.next_seq();
        }
        while taken < wc.len() && !self.broken {
            match self.consumer.peek() {
                Ok(None) => break,
                Ok(Some(record)) if matches!(record.kind, Kind::AccessNak | Kind::InvalidNak) => {
                    if let Some(failed) = self.refuse_write(core, &record) {
                        wc[taken] = failed;
                        taken += 1;
                    }
                    self.fail_connection(
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
                    Err(CorruptRecord) => self.fail_connection(core, AsyncEventKind::QpReqErr),
                },
                Err(CorruptRecord) => self.fail_connection(core, AsyncEventKind::QpReqErr),
            }
        }
        if self.consumer.publish_head() {
            self.notify_credit(core);
        }
        taken
    }

    /// Completes the oldest receive if the refused request is a WRITE with immediate, which has consumed it (IBA 11.6.2:
    /// local access error).
    #[cold]
    fn refuse_write(&self, core: &QpCore, record: &Record) -> Option<Wc> {
        if record.kind != Kind::AccessNak || record.flags & ring::WITH_IMM == 0 {
            return None;
        }
        let status = WcStatus::LOC_ACCESS_ERR;
        // SAFETY: `&self` is only reachable through the `BiasedLock` around `RecvSide`, which admits one thread at a
        // time, as `pop_if` requires.
        let failed = unsafe {
            self.queue.pop_if(|wr_id, _, _| Some(Wc::ended(wr_id, core.qpn, WcOpcode::RECV, status)))
        };
        core.stats.receive_errors.increment();
        core.stats.record(Event::ReceiveFailed as u64, status.0.into());
        failed.flatten()
    }

    /// Matches a record with the oldest receive.
    #[inline]
    fn complete(&self, core: &QpCore, record: &Record) -> Result<Wc, CorruptRecord> {
        let consumer = &self.consumer;
        let is_unchecked = self.queue.oldest_seq() < self.unchecked_until;
        // SAFETY: `&self` is only reachable through the `BiasedLock` around `RecvSide`, which admits one thread at a
        // time, as `pop_if` requires.
        let completion = unsafe {
            self.queue.pop_if(|wr_id, sges, must_check| {
                if (is_unchecked || must_check)
                    && record.kind == Kind::Send
                    && !core.allows_receive(sges, record.len_bytes)
                {
                    return Some(Wc::ended(wr_id, core.qpn, WcOpcode::RECV, WcStatus::LOC_PROT_ERR));
                }
                let fits = match record.kind {
                    // SAFETY: by the contract of `RawQp::post_recv` the receive's memory is valid until this completion
                    // is polled. Its keys were checked when it was posted and no region was revoked since, or they were
                    // checked above.
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
        let mut completion = completion.flatten().ok_or(CorruptRecord)?;
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

    /// In the error state: flushes posted receives, unless the peer may still be writing to one of them.
    #[cold]
    fn flush(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        if !core.is_closed() {
            // The state changes shortly before the queue pair is closed. The closing thread then announces the queue
            // pair.
            return 0;
        }
        let peer_is_inside = hazard::current(self.consumer.memory()) != 0;
        if peer_is_inside && !core.is_quiesced() {
            core.set_flush_waits(true);
            return 0;
        }
        core.set_flush_waits(false);
        // A record published between the last poll and the end of the hazard succeeded for its sender, so its receive
        // must not be flushed.
        let mut taken = 0;
        if self.consumer.has_record() && !self.broken {
            taken = self.deliver(core, wc);
        }
        while taken < wc.len() {
            // SAFETY: `&mut self` is only reachable through the `BiasedLock` around `RecvSide`, which admits one thread
            // at a time, as `pop` requires.
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
    fn fail_connection(&mut self, core: &QpCore, kind: AsyncEventKind) {
        self.broken = true;
        core.fail(Some(kind));
    }

    /// Notifies the peer of free space if it waits for that.
    #[inline]
    fn notify_credit(&self, core: &QpCore) {
        if credit_request::is_credit_requested(self.consumer.memory()) {
            core.notify_credit();
        }
    }
}
