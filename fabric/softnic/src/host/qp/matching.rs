//! Messages of a queue pair with shared receives meet those receives here; see [`super::shared_receive`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use farcall_shm::hazard;
use farcall_shm::ring::{self, Consumer, Garbage, Kind, NAK, OFFERED, RNR, Record, TAKEN, WITHDRAWN};
use farcall_verbs::{AsyncEventKind, QpState, Wc, WcOpcode, WcStatus};

use super::QpCore;
use super::receive::describe;
use super::transfer::scatter_from_ring;
use crate::host::cq::COMPLETIONS_A_TURN;
use crate::host::flight::Event;
use crate::host::srq::{Receive, SrqCore};

/// What came of a turn.
pub(super) struct Turn {
    pub(super) has_completed: bool,
    /// Whether a completion asks for a solicited event.
    pub(super) solicited: bool,
    /// The turn was used up.
    pub(super) has_more: bool,
}

pub(super) struct Matching {
    consumer: Consumer,
    srq: Arc<SrqCore>,
    /// Messages accepted.
    taken: u64,
    /// The receive into which the peer may place a large message.
    offered: Option<Receive>,
    offers: u64,
    is_offered: Arc<AtomicBool>,
    /// Completions of messages that were matched while the owner did not poll.
    stored: VecDeque<Wc>,
    /// How many, for those who are not inside.
    stored_count: Arc<AtomicUsize>,
    /// Whether one of those asks for a solicited event.
    solicited: bool,
    /// The next message found no receive when so many batches had been posted.
    starved_at: Option<u64>,
    /// Nothing more is matched.
    broken: bool,
    /// The last receive that we hold was given back; told by an event.
    ended: bool,
}

impl Matching {
    pub(super) fn new(
        consumer: Consumer,
        srq: Arc<SrqCore>,
        is_offered: Arc<AtomicBool>,
        stored_count: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            consumer,
            srq,
            taken: 0,
            offered: None,
            offers: 0,
            is_offered,
            stored: VecDeque::new(),
            stored_count,
            solicited: false,
            starved_at: None,
            broken: false,
            ended: false,
        }
    }

    /// Whether a poll would find something.
    pub(super) fn has_something(&self, core: &QpCore) -> bool {
        !self.stored.is_empty()
            || (self.consumer.has_record() && !self.broken && !self.starves())
            || (core.state() == QpState::Err && !self.ended)
    }

    fn starves(&self) -> bool {
        self.starved_at == Some(self.srq.posts())
    }

    /// Delivers what has come.
    pub(super) fn poll(&mut self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut taken = self.stored.len().min(wc.len());
        if taken > 0 {
            for (place, stored) in wc.iter_mut().zip(self.stored.drain(..taken)) {
                *place = stored;
            }
            self.stored_count.store(self.stored.len(), Release);
        }
        while taken < wc.len()
            && let Some(completion) = self.next(core)
        {
            wc[taken] = completion;
            taken += 1;
        }
        self.tell_peer(core);
        if core.state() == QpState::Err
            && taken < wc.len()
            && let Some(flushed) = self.end(core)
        {
            wc[taken] = flushed;
            taken += 1;
        }
        taken
    }

    /// Matches one turn of what has come and keeps the completions.
    pub(super) fn match_ahead(&mut self, core: &QpCore) -> Turn {
        let before = self.stored.len();
        self.solicited = false;
        while self.stored.len() < before + COMPLETIONS_A_TURN
            && let Some(completion) = self.next(core)
        {
            self.stored.push_back(completion);
        }
        let has_more = self.stored.len() == before + COMPLETIONS_A_TURN;
        if self.offered.is_some() && !self.consumer.has_record() && core.initiator_has_died() {
            self.give_back_offer(core);
        }
        self.tell_peer(core);
        if core.state() == QpState::Err
            && let Some(flushed) = self.end(core)
        {
            self.stored.push_back(flushed);
        }
        self.stored_count.store(self.stored.len(), Release);
        let mut new = self.stored.range(before..);
        Turn {
            has_completed: new.len() > 0,
            // Failures count as solicited (IBA 11.4.2.2).
            solicited: self.solicited || new.any(|wc| !wc.status.is_success()),
            has_more,
        }
    }

    /// Publishes how far we are, and wakes the peer if it waits for that.
    fn tell_peer(&mut self, core: &QpCore) {
        if self.consumer.publish_head() {
            core.give_credit();
        }
    }

    /// The next message that meets a receive.
    fn next(&mut self, core: &QpCore) -> Option<Wc> {
        while !self.broken && core.state() != QpState::Err {
            let record = match self.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    // Not from inside an access: it withdraws between two.
                    if self.offered.is_some() && self.is_withdrawn() && !self.consumer.has_record() {
                        self.give_back_offer(core);
                    }
                    return None;
                }
                Err(Garbage) => return self.break_off(core, AsyncEventKind::QpReqErr),
            };
            match record.kind {
                Kind::AccessNak => return self.break_off(core, AsyncEventKind::QpAccessErr),
                Kind::SendPlaced => match self.offered.take() {
                    Some(receive) => {
                        self.is_offered.store(false, Release);
                        return self.complete(core, &record, receive);
                    }
                    None => return self.break_off(core, AsyncEventKind::QpReqErr),
                },
                Kind::BadReceive if let Some(receive) = self.offered.take() => {
                    return Some(self.fail(core, &receive, WcStatus::LOC_PROT_ERR));
                }
                Kind::Offer if self.is_withdrawn() => self.broken = true,
                Kind::Send | Kind::WriteImm | Kind::Offer if self.offered.is_none() => {
                    let receive = self.take(core)?;
                    if record.kind != Kind::Offer {
                        return self.complete(core, &record, receive);
                    }
                    if let Some(failed) = self.offer(core, &record, receive) {
                        return Some(failed);
                    }
                }
                _ => return self.break_off(core, AsyncEventKind::QpReqErr),
            }
        }
        None
    }

    /// Whether the peer has given up what was not accepted.
    fn is_withdrawn(&self) -> bool {
        self.consumer.memory().load(TAKEN, Acquire) & WITHDRAWN != 0
    }

    /// Takes a place back that the peer, which has nothing more to publish, does not use.
    fn give_back_offer(&mut self, core: &QpCore) {
        self.broken = true;
        self.is_offered.store(false, Release);
        core.host.access_turn.wait();
        self.offered.take().into_iter().for_each(|receive| self.srq.put_back(receive));
    }

    /// A receive for the next message; without one the peer learns that it is not ready (RNR NAK).
    fn take(&mut self, core: &QpCore) -> Option<Receive> {
        // Again if something was posted meanwhile: who posted may have looked before the peer was told.
        while !self.starves() {
            let posts = self.srq.posts();
            let receive = self.srq.take(&core.this, self.taken + 1);
            if receive.is_some() {
                return receive;
            }
            self.starved_at = Some(posts);
            let memory = self.consumer.memory();
            if memory.load(RNR, Relaxed) != self.taken + 1 {
                memory.store(RNR, self.taken + 1, Release);
                core.give_credit();
            }
        }
        None
    }

    /// Whether the receive's memory may take a message of `len_bytes`.
    fn is_usable(&self, receive: &Receive, len_bytes: u32) -> bool {
        self.srq.allows(receive.sges(), len_bytes)
    }

    /// Shows the peer where to place a large message.
    fn offer(&mut self, core: &QpCore, record: &Record, receive: Receive) -> Option<Wc> {
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
        // What was placed was checked by who placed it; a WRITE with immediate touches no element.
        if record.kind == Kind::Send && !is_too_long && !self.is_usable(&receive, record.len_bytes) {
            return Some(self.fail(core, &receive, WcStatus::LOC_PROT_ERR));
        }
        let fits = match record.kind {
            // SAFETY: the receive's memory is the poster's promise until this completion is polled; its keys were
            // checked just now.
            Kind::Send => unsafe { scatter_from_ring(self.consumer.memory(), record, receive.sges()) },
            Kind::SendPlaced => u64::from(record.len_bytes) <= receive.len_bytes(),
            _ => true,
        };
        if !fits {
            return Some(self.fail(core, &receive, WcStatus::LOC_LEN_ERR));
        }
        if !self.consumer.memory().compare_exchange(TAKEN, self.taken, self.taken + 1) {
            // The peer gave the message up, and with it the connection.
            self.broken = true;
            self.srq.put_back(receive);
            return None;
        }
        self.taken += 1;
        self.solicited |= record.flags & ring::SOLICITED != 0;
        self.consumer.advance(record);
        core.tell_establishment();
        core.stats.messages_received.increment();
        core.stats.bytes_received.add(record.len_bytes.into());
        let mut completion = Wc::ended(receive.wr_id, core.qpn, WcOpcode::RECV, WcStatus::SUCCESS);
        describe(&mut completion, core, record);
        Some(completion)
    }

    /// A message that the receive cannot hold: the peer learns it as a NAK, and both ends fail.
    fn fail(&mut self, core: &QpCore, receive: &Receive, status: WcStatus) -> Wc {
        let remote =
            if status == WcStatus::LOC_LEN_ERR { WcStatus::REM_INV_REQ_ERR } else { WcStatus::REM_OP_ERR };
        self.consumer.memory().store(NAK, (self.taken + 1) << 8 | u64::from(remote.0), Release);
        self.broken = true;
        core.stats.receive_errors.increment();
        core.stats.record(Event::ReceiveFailed as u64, status.0.into());
        core.fail(None);
        core.give_credit();
        Wc::ended(receive.wr_id, core.qpn, WcOpcode::RECV, status)
    }

    #[cold]
    fn break_off(&mut self, core: &QpCore, kind: AsyncEventKind) -> Option<Wc> {
        self.broken = true;
        core.fail(Some(kind));
        None
    }

    /// In the error state: flushes the receive that a message was being placed into, unless the peer may still do that;
    /// afterwards nothing of the shared queue is ours (IBA 10.2.9.5).
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

    /// Ends without completions (RESET, destroy): what was offered is shared again, unless a stopped peer is inside.
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
