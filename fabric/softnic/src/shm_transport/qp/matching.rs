//! Matching of a queue pair's messages with shared receives; see [`super::shared_receive`].

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};

use farcall_shm::hazard;
use farcall_shm::ring::{self, Consumer, CorruptRecord, Kind, NAK, OFFERED, RNR, Record, TAKEN, WITHDRAWN};
use farcall_verbs::{AsyncEventKind, QpState, Wc, WcOpcode, WcStatus};

use super::QpCore;
use super::receive::describe;
use super::transfer::scatter_from_ring;
use crate::shm_transport::cq::COMPLETIONS_PER_QUANTUM;
use crate::shm_transport::flight::Event;
use crate::shm_transport::srq::{Receive, ReceiveWaiter, SrqCore};

/// Result of one matching quantum.
pub(super) struct MatchQuantum {
    pub(super) has_completed: bool,
    /// `true` if a completion requests a solicited event.
    pub(super) solicited: bool,
    /// `true` if the quantum was used up, so more messages may wait.
    pub(super) has_more: bool,
}

pub(super) struct Matching {
    consumer: Consumer,
    srq: Arc<SrqCore>,
    /// This queue pair, as a waiter for shared receives.
    waiter: Weak<dyn ReceiveWaiter>,
    /// Number of messages accepted.
    taken: u64,
    /// Receive to which the peer may write a large message.
    offered: Option<Receive>,
    offers: u64,
    is_offered: Arc<AtomicBool>,
    /// Completions of messages that were matched while the application thread did not poll.
    stored: VecDeque<Wc>,
    /// Length of `stored`, for threads that are not inside.
    stored_count: Arc<AtomicUsize>,
    /// `true` if one of the stored completions requests a solicited event.
    solicited: bool,
    /// Number of batches posted when the next message found no receive.
    waiting_at_posts: Option<u64>,
    /// `true` if no more messages are matched.
    broken: bool,
    /// `true` if the last receive that it held was released, and the event was raised.
    ended: bool,
}

impl Matching {
    pub(super) fn new(
        consumer: Consumer,
        srq: Arc<SrqCore>,
        waiter: Weak<dyn ReceiveWaiter>,
        is_offered: Arc<AtomicBool>,
        stored_count: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            consumer,
            srq,
            waiter,
            taken: 0,
            offered: None,
            offers: 0,
            is_offered,
            stored: VecDeque::new(),
            stored_count,
            solicited: false,
            waiting_at_posts: None,
            broken: false,
            ended: false,
        }
    }

    pub(super) fn waiter(&self) -> &Weak<dyn ReceiveWaiter> {
        &self.waiter
    }

    /// Returns whether a poll would find a completion.
    pub(super) fn may_have_completions(&self, core: &QpCore) -> bool {
        !self.stored.is_empty()
            || (self.consumer.has_record() && !self.broken && !self.waits_for_receive())
            || (core.state() == QpState::Err && !self.ended)
    }

    fn waits_for_receive(&self) -> bool {
        self.waiting_at_posts == Some(self.srq.posts())
    }

    /// Delivers completions.
    pub(super) fn poll(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut taken = self.stored.len().min(wc.len());
        if taken > 0 {
            for (place, stored) in wc.iter_mut().zip(self.stored.drain(..taken)) {
                *place = stored;
            }
            self.stored_count.store(self.stored.len(), Release);
        }
        while taken < wc.len()
            && let Some(completion) = self.next_completion(core)
        {
            wc[taken] = completion;
            taken += 1;
        }
        self.publish_consumed(core);
        if core.state() == QpState::Err
            && taken < wc.len()
            && let Some(flushed) = self.end(core)
        {
            wc[taken] = flushed;
            taken += 1;
        }
        taken
    }

    /// Matches up to [`COMPLETIONS_PER_QUANTUM`] messages and stores their completions.
    pub(super) fn match_for_sleeper(&mut self, core: &QpCore) -> MatchQuantum {
        let before = self.stored.len();
        self.solicited = false;
        while self.stored.len() < before + COMPLETIONS_PER_QUANTUM
            && let Some(completion) = self.next_completion(core)
        {
            self.stored.push_back(completion);
        }
        let has_more = self.stored.len() == before + COMPLETIONS_PER_QUANTUM;
        if self.offered.is_some() && !self.consumer.has_record() && core.initiator_has_exited() {
            self.revoke_offer(core);
        }
        self.publish_consumed(core);
        if core.state() == QpState::Err
            && let Some(flushed) = self.end(core)
        {
            self.stored.push_back(flushed);
        }
        self.stored_count.store(self.stored.len(), Release);
        let mut new = self.stored.range(before..);
        MatchQuantum {
            has_completed: new.len() > 0,
            // Failures count as solicited (IBA 11.4.2.2).
            solicited: self.solicited || new.any(|wc| !wc.status.is_success()),
            has_more,
        }
    }

    /// Publishes the number of consumed records, and notifies the peer if it waits for that.
    fn publish_consumed(&mut self, core: &QpCore) {
        if self.consumer.publish_head() {
            core.notify_credit();
        }
    }

    /// Returns the completion of the next message that matches a receive.
    fn next_completion(&mut self, core: &QpCore) -> Option<Wc> {
        while !self.broken && core.state() != QpState::Err {
            let record = match self.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    // The peer withdraws only between two accesses, so it is not inside the offered receive.
                    if self.offered.is_some() && self.is_withdrawn() && !self.consumer.has_record() {
                        self.revoke_offer(core);
                    }
                    return None;
                }
                Err(CorruptRecord) => return self.fail_connection(core, AsyncEventKind::QpReqErr),
            };
            match record.kind {
                Kind::AccessNak => return self.fail_connection(core, AsyncEventKind::QpAccessErr),
                Kind::SendPlaced => match self.offered.take() {
                    Some(receive) => {
                        self.is_offered.store(false, Release);
                        return self.complete(core, &record, receive);
                    }
                    None => return self.fail_connection(core, AsyncEventKind::QpReqErr),
                },
                Kind::BadReceive if let Some(receive) = self.offered.take() => {
                    return Some(self.fail(core, &receive, WcStatus::LOC_PROT_ERR));
                }
                Kind::Offer if self.is_withdrawn() => self.broken = true,
                Kind::Send | Kind::WriteImm | Kind::Offer if self.offered.is_none() => {
                    let receive = self.take_receive(core)?;
                    if record.kind != Kind::Offer {
                        return self.complete(core, &record, receive);
                    }
                    if let Some(failed) = self.offer_receive(core, &record, receive) {
                        return Some(failed);
                    }
                }
                _ => return self.fail_connection(core, AsyncEventKind::QpReqErr),
            }
        }
        None
    }

    /// Returns whether the peer has withdrawn the messages that were not accepted.
    fn is_withdrawn(&self) -> bool {
        self.consumer.memory().load(TAKEN, Acquire) & WITHDRAWN != 0
    }

    /// Takes back the offered receive. The peer publishes nothing more and does not use it.
    fn revoke_offer(&mut self, core: &QpCore) {
        self.broken = true;
        self.is_offered.store(false, Release);
        core.shm.access_turn.wait();
        self.offered.take().into_iter().for_each(|receive| self.srq.put_back(receive));
    }

    /// Takes a receive for the next message. If there is none, reports to the peer that this side is not ready (RNR
    /// NAK).
    fn take_receive(&mut self, core: &QpCore) -> Option<Receive> {
        // Repeated if receives were posted concurrently: that thread may have checked before the RNR NAK was stored.
        while !self.waits_for_receive() {
            let posts = self.srq.posts();
            let receive = self.srq.take(&self.waiter, self.taken + 1);
            if receive.is_some() {
                return receive;
            }
            self.waiting_at_posts = Some(posts);
            let memory = self.consumer.memory();
            if memory.load(RNR, Relaxed) != self.taken + 1 {
                memory.store(RNR, self.taken + 1, Release);
                core.notify_credit();
            }
        }
        None
    }

    /// Returns whether the receive's memory may take a message of `len_bytes`.
    fn is_usable(&self, receive: &Receive, len_bytes: u32) -> bool {
        self.srq.allows(receive.sges(), len_bytes)
    }

    /// Advertises to the peer where to write a large message.
    fn offer_receive(&mut self, core: &QpCore, record: &Record, receive: Receive) -> Option<Wc> {
        if u64::from(record.len_bytes) > receive.len_bytes() {
            return Some(self.fail(core, &receive, WcStatus::LOC_LEN_ERR));
        }
        if !self.is_usable(&receive, record.len_bytes) {
            return Some(self.fail(core, &receive, WcStatus::LOC_PROT_ERR));
        }
        let memory = self.consumer.memory();
        core.layout.write_advert(memory, self.offers, receive.sges());
        self.offers += 1;
        self.is_offered.store(true, Release);
        memory.store(OFFERED, self.offers, Release);
        self.offered = Some(receive);
        self.consumer.advance(record);
        None
    }

    /// Accepts a message into its receive.
    fn complete(&mut self, core: &QpCore, record: &Record, receive: Receive) -> Option<Wc> {
        let is_too_long = u64::from(record.len_bytes) > receive.len_bytes();
        // A message written by the peer was checked by the peer; a WRITE with immediate uses no scatter element.
        if record.kind == Kind::Send && !is_too_long && !self.is_usable(&receive, record.len_bytes) {
            return Some(self.fail(core, &receive, WcStatus::LOC_PROT_ERR));
        }
        let fits = match record.kind {
            // SAFETY: by the contract of `post_srq_recv` the receive's memory is valid until this completion is polled;
            // `is_usable` has checked its keys.
            Kind::Send => unsafe { scatter_from_ring(self.consumer.memory(), record, receive.sges()) },
            Kind::SendPlaced => u64::from(record.len_bytes) <= receive.len_bytes(),
            _ => true,
        };
        if !fits {
            return Some(self.fail(core, &receive, WcStatus::LOC_LEN_ERR));
        }
        if !self.consumer.memory().compare_exchange(TAKEN, self.taken, self.taken + 1) {
            // The peer has abandoned the message, and with it the connection.
            self.broken = true;
            self.srq.put_back(receive);
            return None;
        }
        self.taken += 1;
        self.solicited |= record.flags & ring::SOLICITED != 0;
        self.consumer.advance(record);
        core.raise_comm_est();
        core.stats.messages_received.increment();
        core.stats.bytes_received.add(record.len_bytes.into());
        let mut completion = Wc::ended(receive.wr_id, core.qpn, WcOpcode::RECV, WcStatus::SUCCESS);
        describe(&mut completion, core, record);
        Some(completion)
    }

    /// Fails a message that the receive cannot hold. The peer receives a NAK, and both queue pairs fail.
    fn fail(&mut self, core: &QpCore, receive: &Receive, status: WcStatus) -> Wc {
        let remote =
            if status == WcStatus::LOC_LEN_ERR { WcStatus::REM_INV_REQ_ERR } else { WcStatus::REM_OP_ERR };
        self.consumer.memory().store(NAK, (self.taken + 1) << 8 | u64::from(remote.0), Release);
        self.broken = true;
        core.stats.receive_errors.increment();
        core.stats.record(Event::ReceiveFailed as u64, status.0.into());
        core.fail(None);
        core.notify_credit();
        Wc::ended(receive.wr_id, core.qpn, WcOpcode::RECV, status)
    }

    #[cold]
    fn fail_connection(&mut self, core: &QpCore, kind: AsyncEventKind) -> Option<Wc> {
        self.broken = true;
        core.fail(Some(kind));
        None
    }

    /// In the error state: flushes the offered receive, unless the peer may still write to it. Afterwards the queue
    /// pair holds no receive of the shared queue (IBA 10.2.9.5).
    #[cold]
    fn end(&mut self, core: &QpCore) -> Option<Wc> {
        if self.ended || !core.is_closed() {
            return None;
        }
        let peer_is_inside = self.offered.is_some() && hazard::current(self.consumer.memory()) != 0;
        if peer_is_inside && !core.is_quiesced() {
            core.set_flush_waits(true);
            return None;
        }
        core.set_flush_waits(false);
        (self.ended, self.broken) = (true, true);
        self.is_offered.store(false, Release);
        core.raise(AsyncEventKind::QpLastWqeReached);
        self.offered
            .take()
            .map(|receive| Wc::ended(receive.wr_id, core.qpn, WcOpcode::RECV, WcStatus::WR_FLUSH_ERR))
    }

    /// Ends without completions (RESET, destroy). The offered receive returns to the shared queue, unless a stopped
    /// peer is inside it.
    pub(super) fn discard(&mut self, core: &QpCore) {
        (self.ended, self.broken) = (true, true);
        self.is_offered.store(false, Release);
        self.stored.clear();
        self.stored_count.store(0, Release);
        core.set_flush_waits(false);
        if let Some(receive) = self.offered.take()
            && core.is_quiesced()
        {
            self.srq.put_back(receive);
        }
    }
}
