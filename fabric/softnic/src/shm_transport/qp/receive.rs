//! Receive side of a queue pair: matches the peer's records with posted receives.

use std::sync::Arc;

use farcall_shm::ring::{self, Consumer, CorruptRecord, Kind, Record};
use farcall_shm::{credit_request, hazard};
use farcall_verbs::{AsyncEventKind, QpState, Wc, WcFlags, WcOpcode, WcStatus};

use super::QpCore;
use super::recv_queue::RecvQueue;
use super::transfer::scatter_from_ring;
use crate::shm_transport::flight::Event;

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

/// State of the thread that polls the receive completion queue. An empty poll reads the fields that come first.
#[repr(C)]
pub(crate) struct RecvSide {
    /// `true` if a record was invalid or matched no receive. Later records are not read.
    broken: bool,
    consumer: Consumer,
    queue: Arc<RecvQueue>,
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
