//! What a datagram queue pair's owner, its completion queues' owners and the service thread share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use farcall_stats::Block;
use farcall_verbs::{
    Access, AsyncEvent, AsyncEventKind, Gid, QpCap, QpState, Result, SendFlags, Sge, Wc, WcOpcode, WcStatus,
};

use super::counters::FLIGHT_RECORDS;
use super::{Board, Counters, Event, Inlets, Outlet, Pending, Receiver, Receives};
use crate::biased::Biased;
use crate::cq::Source;
use crate::events::Events;
use crate::fork::{self, Orphan};
use crate::peer;
use crate::process::Process;
use crate::qp::{Place, RecvQueue, state_of};
use crate::rendezvous::{ReplyBody, RequestBody};
use crate::ring::Layout;
use crate::service::Waits;
use crate::srq::SrqCore;
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
        (self.sends && !self.core.completions.is_empty()) || (self.receives && flushes())
    }
}

impl Waits for DatagramCore {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn keeps_waiting(&self) -> bool {
        !self.lock_asked().is_empty()
    }

    /// Asks for the ways that are wanted.
    fn go_on(&self) {
        let asked = self.lock_asked().clone();
        for pending in asked {
            // The list, this loop, and the route that wants it.
            let is_wanted = Arc::strong_count(&pending) > 2;
            if is_wanted {
                pending.begin_ask();
                match self.seek(&pending) {
                    None => continue,
                    Some(Some(outlet)) => pending.found(outlet, &self.stats),
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
            completions: WcRing::new(parts.cap.max_send_wr as usize),
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
        sges.iter().all(|sge| {
            sge.length == 0 || self.process.regions.allows(sge.lkey, self.pd, sge.addr, sge.length, need)
        })
    }

    /// Send completions not yet polled.
    pub(super) fn unpolled(&self) -> usize {
        self.completions.len()
    }

    /// Ends a send; a success makes a completion only if it is signalled. Only the owner does.
    #[inline]
    pub(super) fn complete_send(&self, wr_id: u64, flags: SendFlags, status: WcStatus) {
        if !status.is_success() {
            self.stats.send_errors.increment();
            self.stats.record(Event::SendFailed as u64, status.0.into());
        } else if !self.signal_all && !flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let completion = Wc::ended(wr_id, self.qpn, WcOpcode::SEND, status);
        // SAFETY: one owner; posting keeps a place for every request.
        unsafe { self.completions.push(completion) };
        self.send_place.cq.announce(self.send_place.bit, !status.is_success());
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
        let peer = match self.process.peer_without_waiting(dst_qpn) {
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
        const LINGER: Duration = Duration::from_millis(500);
        let deadline = Instant::now() + LINGER;
        while self.keeps_waiting() && Instant::now() < deadline {
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
