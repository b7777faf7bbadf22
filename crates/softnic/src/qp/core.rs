//! What a queue pair's owner, its completion queues' owners and the service thread share.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use farcall_stats::Block;
use farcall_verbs::{
    Access, AsyncEvent, AsyncEventKind, QpCap, QpState, Result, RnrTimer, SendFlags, Sge, Wc, WcStatus,
    WrOpcode,
};

use super::Accept;
use super::Connected;
use super::counters::{Event, FLIGHT_RECORDS, QpCounters};
use super::inbound::{Asker, HAZARD_WAIT, Inbound, wait_until};
use super::place::Place;
use super::receive::{RecvQueue, RecvSide};
use super::remote::RemoteCq;
use super::send::{SendSide, completion_opcode};
use super::shared_receive::SharedSide;
use crate::biased::Biased;
use crate::credit;
use crate::events::Events;
use crate::fence;
use crate::fork::{self, Orphan};
use crate::handoff::Handoff;
use crate::peer::Peer;
use crate::process::Process;
use crate::rendezvous::{ReplyBody, has_died, refusal};
use crate::ring::{ACCEPT, Consumer, Layout, RNR, RNR_TIMER};
use crate::service::Waits;
use crate::shared::SharedMem;
use crate::srq::SrqCore;
use crate::wc_ring::WcRing;

pub(crate) struct QpCore {
    pub(super) process: Arc<Process>,
    events: Arc<Events>,
    qpn: u32,
    pd: u32,
    cap: QpCap,
    pub(super) layout: Layout,
    transport: Connected,
    signal_all: bool,
    state: AtomicU32,
    dest_qpn: AtomicU32,
    pub(super) send_place: Place,
    pub(super) recv_place: Place,
    completions: WcRing,
    /// Requests wait for the peer.
    send_waits: AtomicBool,
    /// Changes whenever who polls continues them.
    attendance: AtomicU32,
    /// Receives cannot be flushed yet, because the peer is inside one.
    flush_waits: AtomicBool,
    /// It went to the error state in this life.
    has_failed: AtomicBool,
    /// The pair is closed to the peer, and every access from now on sees it.
    revoked: AtomicBool,
    /// In the service thread's list; changed under its lock.
    is_listed: AtomicBool,
    pub(super) send: Handoff<SendSide>,
    recv: Biased<RecvSide>,
    /// Instead of `recv`, if the receives are shared.
    shared: Option<SharedSide>,
    pub(super) inbound: Mutex<Inbound>,
    pub(super) stats: Block<QpCounters>,
    this: Weak<QpCore>,
}

/// What a queue pair is made of.
pub(super) struct Parts {
    pub(super) process: Arc<Process>,
    pub(super) events: Arc<Events>,
    pub(super) pd: u32,
    pub(super) transport: Connected,
    pub(super) cap: QpCap,
    pub(super) srq: Option<Arc<SrqCore>>,
    pub(super) signal_all: bool,
    pub(super) send_place: Place,
    pub(super) recv_place: Place,
}

/// The state that a number stands for.
#[inline]
pub(crate) const fn state_of(word: u32) -> QpState {
    match word {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        _ => QpState::Err,
    }
}

impl Waits for QpCore {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn keeps_waiting(&self) -> bool {
        self.send_waits.load(Ordering::Acquire) || self.flush_waits.load(Ordering::Acquire)
    }

    fn attendance(&self) -> Option<u32> {
        let is_alone = self.flush_waits.load(Ordering::Acquire);
        (!is_alone).then(|| self.attendance.load(Ordering::Relaxed))
    }

    fn go_on(&self) {
        // What ends is announced where it ends; an owner is not woken for nothing.
        self.visit_sends(false);
        self.continue_receives();
        if self.flush_waits.load(Ordering::Acquire) && self.is_quiesced() {
            self.announce_locally(true);
        }
    }
}

impl QpCore {
    pub(super) fn new(qpn: u32, parts: Parts) -> Result<(Arc<Self>, Arc<RecvQueue>, SharedMem)> {
        let layout = match &parts.srq {
            None => Layout::new(parts.cap.max_recv_wr, parts.cap.max_recv_sge),
            Some(srq) => Layout::for_shared(srq.max_sge()),
        };
        let inbound = Inbound::create(&layout, 0)?;
        let mem = inbound.mem.clone();
        let queue = Arc::new(RecvQueue::new(&layout));
        let recv = RecvSide::new(Consumer::new(inbound.mem.clone(), &layout), queue.clone());
        let core = Arc::new_cyclic(|this| Self {
            process: parts.process,
            events: parts.events,
            qpn,
            pd: parts.pd,
            cap: parts.cap,
            layout,
            transport: parts.transport,
            signal_all: parts.signal_all,
            state: AtomicU32::new(QpState::Reset as u32),
            dest_qpn: AtomicU32::new(0),
            send_place: parts.send_place,
            recv_place: parts.recv_place,
            completions: WcRing::new(parts.cap.max_send_wr as usize),
            send_waits: AtomicBool::new(false),
            attendance: AtomicU32::new(0),
            flush_waits: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            revoked: AtomicBool::new(true),
            is_listed: AtomicBool::new(false),
            send: Handoff::new(SendSide::new(parts.transport)),
            recv: Biased::new(recv),
            shared: parts.srq.map(|srq| SharedSide::new(Consumer::new(mem.clone(), &layout), srq)),
            inbound: Mutex::new(inbound),
            stats: Block::new(&format!("softnic qp {qpn:#08x}"), FLIGHT_RECORDS),
            this: this.clone(),
        });
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        Ok((core, queue, mem))
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// The domain whose memory the peer's messages may be placed into.
    pub(crate) fn receives_pd(&self) -> u32 {
        self.shared.as_ref().map_or(self.pd, |shared| shared.srq().pd())
    }

    /// Whether receives come from a shared receive queue.
    pub(crate) fn shares_receives(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether the peer may place into a receive now; one of its own is offered all the time.
    pub(crate) fn offers_receive(&self) -> bool {
        self.shared.as_ref().is_none_or(SharedSide::is_offered)
    }

    pub(super) fn weak(&self) -> &Weak<Self> {
        &self.this
    }

    pub(crate) fn transport(&self) -> Connected {
        self.transport
    }

    pub(crate) fn cap(&self) -> &QpCap {
        &self.cap
    }

    pub(crate) fn dest_qpn(&self) -> u32 {
        self.dest_qpn.load(Ordering::Relaxed)
    }

    pub(super) fn set_dest_qpn(&self, qpn: u32) {
        self.dest_qpn.store(qpn, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        state_of(self.state.load(Ordering::Acquire))
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
        self.stats.record(Event::State as u64, state as u64);
    }

    /// At the end of a reset: nobody works on the old life any more, so a failure from now on is of the new one.
    pub(super) fn begin_life(&self) {
        self.set_state(QpState::Reset);
        self.has_failed.store(false, Ordering::Release);
    }

    pub(super) fn lock_inbound(&self) -> std::sync::MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- Completions -------------------------------------------------------------------------------------------------

    /// Delivers completions; called by the owner of a completion queue. Of a pair in error only what came before the
    /// error: see [`QpCore::poll_failures`].
    #[inline]
    pub(crate) fn poll(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.state() == QpState::Err {
            return self.poll_before_failures(sends, receives, wc);
        }
        let mut taken = if sends { self.take_sends(wc, |_| true) } else { 0 };
        if receives && taken < wc.len() {
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.resident(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        // Last: a request that waited may fail now, and what the peer sent before comes first.
        if self.send.is_open() {
            self.continue_sends();
            if self.state() == QpState::Err {
                return taken + self.poll_before_failures(sends, receives, &mut wc[taken..]);
            }
            if sends {
                taken += self.take_sends(&mut wc[taken..], |_| true);
            }
        }
        taken
    }

    /// Takes completions of sends as long as `which` says so.
    #[inline]
    fn take_sends(&self, wc: &mut [Wc], which: impl Fn(&Wc) -> bool) -> usize {
        let mut taken = 0;
        while taken < wc.len()
            // SAFETY: completions are taken by the owner of the one send completion queue only.
            && let Some(completion) = unsafe { self.completions.pop_if(&which) }
        {
            wc[taken] = completion;
            taken += 1;
        }
        taken
    }

    /// What succeeded before the pair failed. The queue asks for the failures when no pair has anything else, so that
    /// they come in their place: after what the peer did before it died, on whatever pair.
    #[cold]
    fn poll_before_failures(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        let mut taken = if sends { self.take_sends(wc, |wc| wc.status.is_success()) } else { 0 };
        if sends {
            self.send_place.cq.hold_back();
        }
        if receives {
            self.recv_place.cq.hold_back();
            let rest = &mut wc[taken..];
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.resident(|recv| recv.poll_records(self, rest)) }.unwrap_or(0);
        }
        taken
    }

    /// Delivers the failures of a pair in error: first that of a send, which says why, then what is flushed.
    #[cold]
    pub(crate) fn poll_failures(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.state() != QpState::Err {
            return 0;
        }
        if self.send.is_open() {
            self.continue_sends();
        }
        let mut taken = if sends { self.take_sends(wc, |_| true) } else { 0 };
        if receives && taken < wc.len() {
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.resident(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        taken
    }

    /// A shared receive was posted: the peer is not told any more that its message, which found none, finds none.
    pub(crate) fn end_rnr(&self, message: u64) {
        // A later message may have found none since.
        self.lock_inbound().mem.compare_exchange(RNR, message, 0);
    }

    /// Matches messages with shared receives, for an owner who does something else. For the service thread.
    pub(crate) fn continue_receives(&self) {
        if let Some(shared) = &self.shared {
            shared.match_ahead(self);
        }
    }

    /// Continues requests that wait, unless somebody does already; called by who polls for their completions.
    pub(crate) fn continue_sends(&self) {
        self.visit_sends(true);
    }

    fn visit_sends(&self, attends: bool) {
        let Some(mut send) = self.send.visitor() else { return };
        send.resume(self);
        if attends && send.needs_polls_only() {
            self.attendance.store(self.attendance.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        drop(send);
        self.after_leaving_sends();
    }

    /// To be called by whoever has left the send side, if something may wait there.
    pub(super) fn after_leaving_sends(&self) {
        let Place { cq, bit } = &self.send_place;
        credit::after_leaving(&self.send, cq.readiness(), *bit, |send| send.ask_and_resume(self));
    }

    /// Whether a poll may find something.
    pub(crate) fn has_something(&self, sends: bool, receives: bool) -> bool {
        self.send.is_open()
            || (sends && !self.completions.is_empty())
            // SAFETY: as in `poll`: only the owner of the receive completion queue is the resident.
            || (receives && unsafe { self.recv.resident(|recv| recv.has_something(self)) }.unwrap_or(true))
    }

    /// The receive side, if its receives are shared.
    pub(super) fn shared(&self) -> Option<&SharedSide> {
        self.shared.as_ref()
    }

    /// Send completions not yet polled.
    pub(super) fn unpolled(&self) -> usize {
        self.completions.len()
    }

    /// Drops send completions that were not polled; called with the send side held.
    pub(super) fn forget_completions(&self) {
        // SAFETY: only who holds the send side ends requests.
        unsafe { self.completions.forget() }
    }

    /// Ends a send request that moved `len_bytes`; it makes a completion only if it is signalled.
    #[inline]
    pub(super) fn complete_send(&self, wr_id: u64, opcode: WrOpcode, flags: SendFlags, len_bytes: u64) {
        if self.signal_all || flags.contains(SendFlags::SIGNALED) {
            // A message has less than 2^32 bytes.
            let byte_len = len_bytes as u32;
            self.end_send(Wc {
                byte_len,
                ..Wc::ended(wr_id, self.qpn, completion_opcode(opcode), WcStatus::SUCCESS)
            });
        }
    }

    /// Ends a send request that failed.
    #[cold]
    pub(super) fn fail_send(&self, wr_id: u64, opcode: WrOpcode, status: WcStatus) {
        self.stats.send_errors.increment();
        self.stats.record(Event::SendFailed as u64, status.0.into());
        self.end_send(Wc::ended(wr_id, self.qpn, completion_opcode(opcode), status));
    }

    #[inline]
    fn end_send(&self, completion: Wc) {
        // SAFETY: called only from inside the send side, by one thread; posting keeps a place for every request.
        unsafe { self.completions.push(completion) };
        self.send_place.cq.announce(self.send_place.bit, !completion.status.is_success());
    }

    /// Makes the owners of both completion queues look here.
    pub(crate) fn announce_locally(&self, solicited: bool) {
        self.send_place.cq.announce(self.send_place.bit, solicited);
        self.recv_place.cq.announce(self.recv_place.bit, solicited);
    }

    // --- Waiting requests --------------------------------------------------------------------------------------------

    /// Lets the service thread look after us from time to time; returns whether it did not already.
    pub(super) fn retry_later(&self) -> bool {
        self.process.service.retry(self, &self.this)
    }

    pub(super) fn set_send_waits(&self, waits: bool) {
        self.send_waits.store(waits, Ordering::Release);
    }

    /// Receives cannot be flushed now (true), or were (false).
    pub(super) fn set_flush_waits(&self, waits: bool) {
        if self.flush_waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.retry_later();
        }
    }

    /// Whether local elements are allowed.
    #[inline]
    pub(super) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        sges.iter().all(|sge| {
            sge.length == 0 || self.process.regions.allows(sge.lkey, self.pd, sge.addr, sge.length, need)
        })
    }

    /// After posting receives or consuming records: wakes a peer that waits for that.
    #[cold]
    pub(super) fn give_credit(&self) {
        self.lock_inbound().give_credit();
    }

    /// Refuses a request posted in the error state.
    #[cold]
    pub(super) fn flush_send(&self, wr_id: u64, opcode: WrOpcode) {
        self.fail_send(wr_id, opcode, WcStatus::WR_FLUSH_ERR);
    }

    // --- Errors ------------------------------------------------------------------------------------------------------

    /// Goes to the error state: nothing of the peer is executed any more, what is posted is flushed by later polls.
    #[cold]
    pub(crate) fn enter_error(&self) {
        self.fail(None);
    }

    /// As `enter_error`; `why` is told by an event, unless the pair has failed already.
    #[cold]
    pub(crate) fn fail(&self, why: Option<AsyncEventKind>) {
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            let change = || self.set_state(QpState::Err);
            match why {
                Some(kind) => self.events.raise_with(AsyncEvent { kind, element: self.qpn }, change),
                None => change(),
            }
            self.close();
            if self.shares_receives() {
                // What it holds of the shared receives is given back, also if nobody polls.
                self.set_flush_waits(true);
            }
            self.announce_locally(true);
        }
    }

    /// Goes from one state to another, unless an error was faster.
    pub(super) fn change_state(&self, from: QpState, to: QpState) -> bool {
        let changed =
            self.state.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if changed {
            self.stats.record(Event::State as u64, to as u64);
        }
        changed
    }

    /// How long an initiator that finds no receive here waits (IBA 9.7.5.2.8).
    pub(super) fn set_rnr_timer(&self, timer: RnrTimer) {
        self.lock_inbound().mem.store(RNR_TIMER, timer.0.into(), Ordering::Relaxed);
    }

    /// Goes to the send queue error state: sends are flushed, receives go on (IBA 10.3.1, all transports but RC).
    #[cold]
    pub(super) fn enter_send_error(&self) {
        let (from, to) = (QpState::Rts as u32, QpState::Sqe as u32);
        if self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.stats.record(Event::State as u64, to.into());
        }
    }

    /// Revokes what the peer was granted through this pair.
    pub(super) fn close(&self) {
        self.lock_inbound().mem.store(ACCEPT, 0, Ordering::Release);
        fence::heavy();
        // What the service thread does for the peer ends before it lets us in; later it finds the pair closed.
        self.process.access_turn.wait();
        self.revoked.store(true, Ordering::Release);
    }

    pub(super) fn open(&self, accept: Accept) {
        self.revoked.store(false, Ordering::Release);
        self.lock_inbound().mem.store(ACCEPT, accept.word(), Ordering::Release);
    }

    /// Whether `close` is done: an access of the peer that is not under way now is refused.
    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// Waits until no access of the peer is under way that `concerns` selects by its hazard, but not beyond `deadline`,
    /// for a stopped peer; returns whether there is none.
    pub(crate) fn wait_clear(&self, deadline: Instant, concerns: impl Fn(u64) -> bool) -> bool {
        wait_until(deadline, || self.lock_inbound().is_clear(&concerns))
    }

    /// After `close`: whether no access of the peer is left.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.lock_inbound().is_clear(|hazard| hazard != 0)
    }

    /// Whether the process that was granted the way in has ended.
    pub(super) fn initiator_has_died(&self) -> bool {
        self.lock_inbound().initiator.as_ref().is_some_and(|life| has_died(life))
    }

    /// Ends a life, after `close`: whoever is still inside an access is remembered until he leaves or dies.
    pub(super) fn leave_behind(&self) {
        if !self.wait_clear(Instant::now() + HAZARD_WAIT, |hazard| hazard != 0) {
            tracing::warn!("queue pair {:#x}: its peer is stopped inside an access", self.qpn);
            let domains = (self.pd, self.receives_pd());
            self.process.past_lives.remember(self.qpn, domains, self.lock_inbound().past());
        }
    }

    // --- Connecting --------------------------------------------------------------------------------------------------

    /// How often the pair was reset.
    pub(super) fn life(&self) -> u32 {
        self.lock_inbound().life
    }

    /// Grants the way in to the peer's queue pair, once: a ring has one producer, which begins at its beginning.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn grant_inbound<R>(
        &self,
        asker: Asker,
        transport: Connected,
        client: u64,
        life: impl FnOnce() -> (Option<Arc<OwnedFd>>, Option<RemoteCq>),
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, u32> {
        let mut inbound = self.lock_inbound();
        if !self.state().responds() {
            return Err(refusal::NOT_READY);
        }
        if self.transport != transport {
            return Err(refusal::TRANSPORT);
        }
        if self.dest_qpn() != asker.1 || inbound.granted_to.is_some_and(|granted| granted != asker) {
            return Err(refusal::TAKEN);
        }
        inbound.granted_to = Some(asker);
        inbound.client = Some(client);
        if inbound.initiator.is_none() {
            (inbound.initiator, inbound.creditor) = life();
        }
        let recv = &self.recv_place;
        let mut fds = vec![inbound.segment.fd(), recv.cq.segment_fd()];
        let waker = recv.cq.waker_fd();
        fds.extend(waker);
        let body = ReplyBody::Connect { pd: self.pd, recv_bit: recv.bit, recv_event: waker.is_some() };
        Ok(send(body, &fds))
    }

    /// Whether nobody but `client` has the way in.
    pub(crate) fn is_granted_to(&self, client: u64) -> bool {
        self.lock_inbound().client.is_none_or(|granted| granted == client)
    }

    /// What is accepted from the peer that asks as `client` in its `life`.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn accepts_from(&self, client: u64, life: u32) -> Result<Accept, u32> {
        let inbound = self.lock_inbound();
        if inbound.client != Some(client) || inbound.granted_to.is_none_or(|asker| asker.2 != life) {
            return Err(refusal::TAKEN);
        }
        let accept = Accept::from_word(inbound.mem.load(ACCEPT, Ordering::Acquire));
        if accept.is_open() { Ok(accept) } else { Err(refusal::NOT_READY) }
    }

    /// Where we wait for credit, for the peer.
    pub(super) fn send_place(&self) -> &Place {
        &self.send_place
    }

    /// Tells the peer object whose end is to be told to us.
    pub(super) fn connected(&self, peer: &Arc<Peer>) {
        peer.attach(self.this.clone());
    }

    /// Begins a new life: new inbound segment, new queues. The peer's mapping of the old segment leads nowhere.
    pub(super) fn renew(&self) -> Result<(Arc<RecvQueue>, SharedMem)> {
        let fresh = Inbound::create(&self.layout, self.life().wrapping_add(1))?;
        let queue = Arc::new(RecvQueue::new(&self.layout));
        let consumer = Consumer::new(fresh.mem.clone(), &self.layout);
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.recv.visit(|recv| *recv = RecvSide::new(consumer, queue.clone())) };
        if let Some(shared) = &self.shared {
            shared.renew(self, Consumer::new(fresh.mem.clone(), &self.layout));
        }
        let mem = fresh.mem.clone();
        *self.lock_inbound() = fresh;
        Ok((queue, mem))
    }

    /// Leaves the completion queues. Afterwards no poll is inside our receives.
    pub(super) fn detach(&self) {
        Place::release(&self.send_place, &self.recv_place);
        // A poll that began before may still come in by its own copy of the list: it must find nothing to do.
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.send.owner() }.renew(self);
        // SAFETY: as above; visits wait for the resident.
        unsafe { self.recv.visit(RecvSide::end) };
        if let Some(shared) = &self.shared {
            shared.end(self);
        }
    }
}

impl Orphan for QpCore {
    fn orphan(&self) {
        self.state.store(QpState::Reset as u32, Ordering::Relaxed);
    }
}
