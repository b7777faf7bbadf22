//! What a datagram queue pair's owner, its completion queues' owners and the service thread share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use farcall_stats::Block;
use farcall_verbs::{
    Access, AsyncEvent, AsyncEventKind, Gid, QpCap, QpState, Result, SendFlags, Sge, Wc, WcOpcode, WcStatus,
};

use super::held::is_signalled;
use super::pending::Tally;
use super::{Board, Counters, Held, HeldSends, Inlets, Outlet, Pending, Receiver, Receives};
use crate::biased::Biased;
use crate::cq::Source;
use crate::events::Events;
use crate::flight::{Event, FLIGHT_RECORDS};
use crate::fork::{self, Orphan};
use crate::peer;
use crate::process::Process;
use crate::qp::{Place, RecvQueue, state_of};
use crate::rendezvous::{ReplyBody, RequestBody};
use crate::ring::Layout;
use crate::service::Waits;
use crate::srq::SrqCore;
use crate::waited::Waited;
use crate::wc_ring::WcRing;

pub(crate) struct DatagramCore {
    process: Arc<Process>,
    qpn: u32,
    pd: u32,
    cap: QpCap,
    srq: Option<Arc<SrqCore>>,
    events: Arc<Events>,
    signal_all: bool,
    state: AtomicU32,
    send_place: Place,
    pub(super) recv_place: Place,
    completions: WcRing,
    held: HeldSends,
    /// That the send queue is drained is to be told, once.
    tells_drained: AtomicBool,
    /// Ways that the service thread must ask for.
    asked: Mutex<Vec<Arc<Pending>>>,
    is_listed: AtomicBool,
    pub(super) receiver: Biased<Receiver>,
    inlets: Mutex<Inlets>,
    pub(super) board: Board,
    pub(super) stats: Block<Counters>,
    this: Weak<DatagramCore>,
}

/// What a datagram queue pair is made of.
pub(super) struct Parts {
    pub(super) process: Arc<Process>,
    pub(super) pd: u32,
    pub(super) cap: QpCap,
    pub(super) srq: Option<Arc<SrqCore>>,
    pub(super) events: Arc<Events>,
    pub(super) signal_all: bool,
    pub(super) send_place: Place,
    pub(super) recv_place: Place,
}

/// The pair itself as a source of completions: of sends, and of receives that are flushed.
struct Own {
    core: Arc<DatagramCore>,
    sends: bool,
    receives: bool,
}

impl Source for Own {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        let mut taken = 0;
        if self.sends {
            while taken < wc.len()
                // SAFETY: completions are taken by the owner of the one send completion queue only.
                && let Some(completion) = unsafe { self.core.completions.pop() }
            {
                wc[taken] = completion;
                taken += 1;
            }
            if self.core.held.count() > 0 {
                taken += self.core.poll_held(&mut wc[taken..]);
            }
        }
        if self.receives && self.core.state() == QpState::Err {
            let (core, rest) = (&self.core, &mut wc[taken..]);
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { core.receiver.resident(|receiver| receiver.flush(core, rest)) }.unwrap_or(0);
        }
        taken
    }

    fn has_something(&self) -> bool {
        let flushes = || {
            // SAFETY: as in `poll`.
            let receives = unsafe { self.core.receiver.resident(|receiver| receiver.has_receives()) };
            self.core.state() == QpState::Err && receives.unwrap_or(true)
        };
        let sends = || !self.core.completions.is_empty() || self.core.held.count() > 0;
        (self.sends && sends()) || (self.receives && flushes())
    }
}

impl Waits for DatagramCore {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn keeps_waiting(&self) -> bool {
        !self.lock_asked().is_empty() || (self.held.count() > 0 && self.held.lock().waits())
    }

    /// Asks for the ways that are wanted, and continues what waits.
    fn go_on(&self) {
        self.seek_all();
        if self.held.count() > 0 {
            let mut held = self.held.lock();
            held.advance(self.after_wait());
            let (is_over, waits) = (held.is_over(), held.waits());
            drop(held);
            if is_over {
                self.send_place.cq.announce(self.send_place.bit, false);
            }
            if !waits {
                self.tell_if_due();
            }
        }
    }
}

impl DatagramCore {
    fn seek_all(&self) {
        let asked = self.lock_asked().clone();
        for pending in asked {
            // The list, this loop, and the route that wants it.
            let is_wanted = Arc::strong_count(&pending) > 2;
            if is_wanted {
                pending.begin_ask();
                match self.seek(&pending) {
                    None => continue,
                    Some(Some(outlet)) => pending.found(Box::new(outlet), &self.stats),
                    Some(None) if pending.refused(&self.stats) => {}
                    Some(None) => continue,
                }
            }
            self.lock_asked().retain(|other| !Arc::ptr_eq(other, &pending));
        }
    }
}

impl DatagramCore {
    pub(super) fn new(qpn: u32, parts: Parts) -> Result<(Arc<Self>, Arc<RecvQueue>)> {
        let board = Board::create()?;
        let queue = Arc::new(RecvQueue::new(&Self::sizes(&parts.cap)));
        let receiver = Receiver::new(Self::receives(parts.srq.as_ref(), &queue));
        let core = Arc::new_cyclic(|this| Self {
            process: parts.process,
            qpn,
            pd: parts.pd,
            cap: parts.cap,
            srq: parts.srq,
            events: parts.events,
            signal_all: parts.signal_all,
            state: AtomicU32::new(QpState::Reset as u32),
            send_place: parts.send_place,
            recv_place: parts.recv_place,
            completions: WcRing::new(qpn, parts.cap.max_send_wr as usize),
            held: HeldSends::default(),
            tells_drained: AtomicBool::new(false),
            asked: Mutex::default(),
            is_listed: AtomicBool::new(false),
            receiver: Biased::new(receiver),
            inlets: Mutex::default(),
            board,
            stats: Block::new(&format!("softnic ud qp {qpn:#08x}"), FLIGHT_RECORDS),
            this: this.clone(),
        });
        core.srq.iter().for_each(|srq| srq.attach());
        core.tell_receives(0);
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        Ok((core, queue))
    }

    fn receives(srq: Option<&Arc<SrqCore>>, own: &Arc<RecvQueue>) -> Receives {
        srq.map_or_else(|| Receives::Own(own.clone()), |srq| Receives::Shared(srq.clone()))
    }

    /// Whether receives are those of a shared queue.
    pub(super) fn shares_receives(&self) -> bool {
        self.srq.is_some()
    }

    /// Tells senders how many receives were posted. How many are left in a shared queue nobody can know before it is
    /// looked at: what finds none is dropped then.
    pub(super) fn tell_receives(&self, posted: u64) {
        self.board.set_posted(if self.srq.is_some() { u64::MAX } else { posted });
    }

    pub(super) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// The sizes of a receive queue.
    fn sizes(cap: &QpCap) -> Layout {
        Layout::new(cap.max_recv_wr, cap.max_recv_sge)
    }

    /// Comes to its completion queues.
    pub(super) fn attach(self: &Arc<Self>) {
        let (send, recv) = (&self.send_place, &self.recv_place);
        let one = send.is_same(recv);
        send.cq.attach_source(send.bit, Arc::new(Own { core: self.clone(), sends: true, receives: one }));
        if !one {
            let own = Own { core: self.clone(), sends: false, receives: true };
            recv.cq.attach_source(recv.bit, Arc::new(own));
        }
    }

    pub(super) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }

    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    pub(super) fn cap(&self) -> &QpCap {
        &self.cap
    }

    pub(super) fn gid(&self) -> Gid {
        self.process.gid()
    }

    #[inline]
    pub(super) fn state(&self) -> QpState {
        state_of(self.state.load(Ordering::Acquire))
    }

    /// Changes the state; only the owner does.
    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
        self.stats.record(Event::State as u64, state as u64);
    }

    pub(super) fn lock_inlets(&self) -> MutexGuard<'_, Inlets> {
        self.inlets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_asked(&self) -> MutexGuard<'_, Vec<Arc<Pending>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether local elements are allowed.
    #[inline]
    pub(super) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        self.process.regions.allows_all(sges, self.pd, need)
    }

    /// Places of the send queue that are taken: by completions not yet polled, and by requests that have not ended.
    pub(super) fn unpolled(&self) -> usize {
        self.completions.len() + self.held.count()
    }

    /// Ends a send; a success makes a completion only if it is signalled. Only the owner does.
    #[inline]
    pub(super) fn complete_send(&self, wr_id: u64, flags: SendFlags, status: WcStatus) {
        if !status.is_success() {
            self.stats.send_errors.increment();
            self.stats.record(Event::SendFailed as u64, status.0.into());
        }
        let is_told = !status.is_success() || is_signalled(self.signal_all, flags);
        if self.held.count() > 0 && is_told {
            return self.complete_behind(Wc::ended(wr_id, self.qpn, WcOpcode::SEND, status));
        }
        if !is_told {
            return;
        }
        let completion = Wc::ended(wr_id, self.qpn, WcOpcode::SEND, status);
        // SAFETY: one owner; posting keeps a place for every request.
        unsafe { self.completions.push(completion) };
        self.send_place.cq.announce(self.send_place.bit, !status.is_success());
    }

    /// As [`DatagramCore::complete_send`], behind requests that have not ended yet.
    #[cold]
    fn complete_behind(&self, completion: Wc) {
        let mut held = self.held.lock();
        held.push(Held { completion, is_told: true, wait: None });
        let is_over = held.is_over();
        drop(held);
        if is_over {
            self.send_place.cq.announce(self.send_place.bit, !completion.status.is_success());
        }
    }

    /// Keeps a request's place in the send queue until its datagram is on its way, or dropped. Only the owner does.
    #[cold]
    pub(super) fn hold_send(&self, wr_id: u64, flags: SendFlags, wait: (Arc<Pending>, u64)) {
        let completion = Wc::ended(wr_id, self.qpn, WcOpcode::SEND, WcStatus::SUCCESS);
        let is_told = is_signalled(self.signal_all, flags);
        self.held.lock().push(Held { completion, is_told, wait: Some(wait) });
        self.process.service.retry(self, &self.this);
    }

    /// Has SQ_DRAINED told when nothing is under way any more, or no longer. Only the owner does.
    pub(super) fn tell_drained(&self, is_wanted: bool) {
        self.tells_drained.store(is_wanted, Ordering::SeqCst);
        if is_wanted && !self.held.lock().waits() {
            self.tell_if_due();
        }
    }

    #[cold]
    fn tell_if_due(&self) {
        if self.tells_drained.swap(false, Ordering::SeqCst) {
            self.raise(AsyncEventKind::SqDrained);
        }
    }

    fn after_wait(&self) -> Tally<'_> {
        Tally { sent: &self.stats.sent_after_wait, dropped: &self.stats.dropped_after_wait }
    }

    /// Continues what waits, and ends what is over. Only the owner does.
    #[inline]
    pub(super) fn release_sends(&self) {
        if self.held.count() > 0 {
            self.release_held();
        }
    }

    #[cold]
    fn release_held(&self) {
        let mut held = self.held.lock();
        held.advance(self.after_wait());
        let mut told = false;
        while let Some(ended) = held.pop() {
            if ended.is_told {
                // SAFETY: the owner; the request had its place all the time.
                unsafe { self.completions.push(ended.completion) };
                told = true;
            }
        }
        let waits = held.waits();
        drop(held);
        if !waits {
            self.tell_if_due();
        }
        if told {
            self.send_place.cq.announce(self.send_place.bit, false);
        }
    }

    /// Continues what waits, and delivers what is over: called by the owner of the send completion queue.
    #[cold]
    fn poll_held(&self, wc: &mut [Wc]) -> usize {
        let mut held = self.held.lock();
        held.advance(self.after_wait());
        let mut taken = 0;
        while taken < wc.len() {
            // What the owner has ended meanwhile came before what is held now.
            // SAFETY: completions are taken by the owner of the one send completion queue only.
            if let Some(completion) = unsafe { self.completions.pop() } {
                wc[taken] = completion;
                taken += 1;
                continue;
            }
            let Some(ended) = held.pop() else { break };
            if ended.is_told {
                wc[taken] = ended.completion;
                taken += 1;
            }
        }
        let waits = held.waits();
        drop(held);
        if !waits {
            self.tell_if_due();
        }
        taken
    }

    /// Ends what waits as flushed. Only the owner does.
    pub(super) fn flush_sends(&self) {
        let mut held = self.held.lock();
        let mut any = false;
        held.end_all(|ended| {
            any = true;
            self.stats.send_errors.increment();
            let flushed = Wc::ended(ended.completion.wr_id, self.qpn, WcOpcode::SEND, WcStatus::WR_FLUSH_ERR);
            // SAFETY: the owner; the request had its place all the time.
            unsafe { self.completions.push(flushed) };
        });
        drop(held);
        if any {
            self.send_place.cq.announce(self.send_place.bit, true);
        }
    }

    /// Forgets what waits. Only the owner does.
    pub(super) fn forget_sends(&self) {
        self.held.lock().end_all(drop);
    }

    /// Makes the owner of the receive completion queue look here.
    pub(super) fn announce_flush(&self) {
        self.recv_place.cq.announce(self.recv_place.bit, true);
    }

    /// Has the service thread ask for a way; a little later if it was just refused.
    pub(super) fn ask(&self, pending: Arc<Pending>, was_lost: bool) {
        self.stats.ways_asked.increment();
        self.stats.record(Event::Asked as u64, pending.dst_qpn().into());
        self.lock_asked().push(pending);
        if was_lost {
            self.process.service.retry(self, &self.this);
        } else {
            self.process.service.retry_now(self, &self.this);
        }
    }

    /// Asks the destination's process for a way, without waiting. `None`: no answer yet; `Some(None)`: there is no way.
    fn seek(&self, pending: &Pending) -> Option<Option<Outlet>> {
        let dst_qpn = pending.dst_qpn();
        let peer = match self.process.peer_of(dst_qpn, &mut pending.meeting()) {
            Ok(peer) => peer?,
            Err(_) => return Some(None),
        };
        let (instance, src_qpn) = (self.process.instance(), self.qpn);
        let request = RequestBody::OpenDatagrams { instance, src_qpn, dst_qpn };
        match peer.ask(pending.interest(), request, &[]) {
            peer::Asked::Granted((ReplyBody::OpenDatagrams { recv_bit, recv_event }, fds)) => {
                let outlet = Outlet::from_grant(peer, recv_bit, recv_event, fds);
                if outlet.is_none() {
                    tracing::warn!(
                        "queue pair {:#x}: the way to {dst_qpn:#x} was granted and cannot be used (out of \
                         descriptors? raise RLIMIT_NOFILE)",
                        self.qpn
                    );
                }
                Some(outlet)
            }
            peer::Asked::NotYet if !peer.check_dead() => None,
            _ => Some(None),
        }
    }

    /// Waits until what was kept is on its way or dropped, but not for long: before the pair ends.
    pub(super) fn linger(&self) {
        const LINGER: Duration = Duration::from_secs(2);
        let mut waited = Waited::default();
        while self.keeps_waiting() && waited.look() < LINGER {
            self.release_sends();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Takes no datagrams any more, and gives up those that came.
    pub(super) fn close(&self) {
        self.board.close();
        self.close_inlets(&mut self.lock_inlets());
    }

    /// Begins a new life, after [`DatagramCore::close`]: a new queue of receives.
    pub(super) fn renew(&self) -> Arc<RecvQueue> {
        let queue = Arc::new(RecvQueue::new(&Self::sizes(&self.cap)));
        let receiver = Receiver::new(Self::receives(self.srq.as_ref(), &queue));
        let _one_visitor = self.lock_inlets();
        // SAFETY: whoever visits holds the lock of the inlets, and no poll does.
        unsafe { self.receiver.visit(|old| *old = receiver) };
        self.tell_receives(0);
        self.board.set_taken(0);
        // SAFETY: only the owner, who renews, ends sends.
        unsafe { self.completions.forget() };
        queue
    }

    /// Leaves the completion queues. Afterwards no poll is inside our receives.
    pub(super) fn detach(&self) {
        Place::release(&self.send_place, &self.recv_place);
        // A poll that began before may still come in by its own copy of the list: it must find nothing to do.
        drop(self.renew());
        self.srq.iter().for_each(|srq| srq.detach());
    }
}

impl Orphan for DatagramCore {
    fn orphan(&self) {
        self.state.store(QpState::Reset as u32, Ordering::Relaxed);
    }
}
