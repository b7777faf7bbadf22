//! What a datagram queue pair's owner, its completion queues' owners and the service thread share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use farcall_shm::fork::{self, DisableInChild};
use farcall_shm::ring::Layout;
use farcall_shm::{BiasedLock, Mutex, WcRing};
use farcall_stats::Block;
use farcall_verbs::{Access, AsyncEvent, AsyncEventKind, QpCap, QpState, QpType, Result, Sge, Wc};

use super::{Askers, Board, Counters, Inlets, Pending, Receiver, Receives, UnendedSends};
use crate::host::cq::Source;
use crate::host::events::Events;
use crate::host::flight::{Event, FLIGHT_RECORDS};
use crate::host::qp::RecvQueue;
use crate::host::srq::SrqCore;
use crate::host::state::{StateCell, Step};
use crate::host::{CqSlot, Host, Parts};
use crate::life::Retry;

pub(crate) struct DatagramCore {
    pub(crate) host: Arc<Host>,
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    srq: Option<Arc<SrqCore>>,
    events: Arc<Events>,
    pub(super) signal_all: bool,
    state: StateCell,
    pub(super) send_slot: CqSlot,
    pub(crate) recv_slot: CqSlot,
    pub(super) completions: WcRing,
    pub(super) unended: UnendedSends,
    /// Whether the owner has looked at those since the service thread did.
    pub(super) is_attended: AtomicBool,
    /// That the send queue is drained is to be told, once.
    pub(super) drained_event_wanted: AtomicBool,
    /// Ways that the service thread must ask for.
    pub(super) sought: Mutex<Vec<Arc<Pending>>>,
    is_listed: AtomicBool,
    pub(super) receiver: BiasedLock<Receiver>,
    pub(super) inlets: Mutex<Inlets>,
    pub(super) askers: Askers,
    pub(crate) board: Board,
    pub(crate) stats: Block<Counters>,
    pub(super) this: Weak<DatagramCore>,
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
            if self.core.unended.count() > 0 {
                taken += self.core.poll_unended(&mut wc[taken..]);
            }
        }
        if self.receives && self.core.state() == QpState::Err {
            let (core, rest) = (&self.core, &mut wc[taken..]);
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { core.receiver.owner(|receiver| receiver.flush(core, rest)) }.unwrap_or(0);
        }
        taken
    }

    fn has_something(&self) -> bool {
        let flushes = || {
            // SAFETY: as in `poll`.
            let receives = unsafe { self.core.receiver.owner(|receiver| receiver.has_receives()) };
            self.core.state() == QpState::Err && receives.unwrap_or(true)
        };
        let sends = || !self.core.completions.is_empty() || self.core.unended.count() > 0;
        (self.sends && sends()) || (self.receives && flushes())
    }
}

impl Retry for DatagramCore {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn is_waiting(&self) -> bool {
        !self.sought.lock().is_empty() || (self.unended.count() > 0 && self.unended.lock().waits())
    }

    /// Asks for the ways that are wanted, and continues what waits.
    fn resume(&self) {
        self.seek_all();
        self.continue_sends();
    }
}

impl DatagramCore {
    pub(crate) fn new(qpn: u32, parts: Parts) -> Result<(Arc<Self>, Arc<RecvQueue>)> {
        let board = Board::create()?;
        let queue = Arc::new(RecvQueue::new(&Self::sizes(&parts.cap)));
        let receiver = Receiver::new(Self::receives(parts.srq.as_ref(), &queue));
        let core = Arc::new_cyclic(|this| Self {
            host: parts.host,
            qpn,
            pd: parts.pd,
            cap: parts.cap,
            srq: parts.srq,
            events: parts.events,
            signal_all: parts.signal_all,
            state: StateCell::new(),
            send_slot: parts.send_slot,
            recv_slot: parts.recv_slot,
            completions: WcRing::new(qpn, parts.cap.max_send_wr as usize),
            unended: UnendedSends::default(),
            is_attended: AtomicBool::new(false),
            drained_event_wanted: AtomicBool::new(false),
            sought: Mutex::default(),
            is_listed: AtomicBool::new(false),
            receiver: BiasedLock::new(receiver),
            inlets: Mutex::default(),
            askers: Askers::default(),
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
    pub(crate) fn shares_receives(&self) -> bool {
        self.srq.is_some()
    }

    /// Tells senders how many receives were posted. How many are left in a shared queue nobody can know before it is
    /// looked at: what finds none is dropped then.
    pub(crate) fn tell_receives(&self, posted: u64) {
        self.board.set_posted(if self.srq.is_some() { u64::MAX } else { posted });
        self.askers.tell(|asker| asker.wants_receives);
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// The sizes of a receive queue.
    fn sizes(cap: &QpCap) -> Layout {
        Layout::new(cap.max_recv_wr, cap.max_recv_sge)
    }

    /// Comes to its completion queues.
    pub(crate) fn attach(self: &Arc<Self>) {
        let (send, recv) = (&self.send_slot, &self.recv_slot);
        let one = send.is_same(recv);
        send.cq.attach_source(send.bit, Arc::new(Own { core: self.clone(), sends: true, receives: one }));
        if !one {
            let own = Own { core: self.clone(), sends: false, receives: true };
            recv.cq.attach_source(recv.bit, Arc::new(own));
        }
    }

    pub(crate) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.state.get().shown()
    }

    /// Makes a step of the state machine; only the owner does. False, and nothing changed, if it cannot be made.
    pub(crate) fn make_step(&self, step: Step) -> bool {
        let Some((from, to)) = self.state.make(step, QpType::Ud) else { return false };
        if from.shown() != to.shown() {
            self.stats.state.set(to.shown() as u64);
            self.stats.record(Event::State as u64, to.shown() as u64);
        }
        true
    }

    /// Whether local elements are allowed.
    #[inline]
    pub(crate) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        self.host.process.regions.allows_all(sges, self.pd, need)
    }

    /// Makes the owner of the receive completion queue look here.
    pub(crate) fn announce_flush(&self) {
        self.recv_slot.cq.announce(self.recv_slot.bit, true);
    }

    /// Takes no datagrams any more, and gives up those that came.
    pub(crate) fn close(&self) {
        self.board.close();
        self.close_inlets(&mut self.inlets.lock());
    }

    /// Begins a new life, after [`DatagramCore::close`]: a new queue of receives.
    pub(crate) fn renew(&self) -> Arc<RecvQueue> {
        let queue = Arc::new(RecvQueue::new(&Self::sizes(&self.cap)));
        let receiver = Receiver::new(Self::receives(self.srq.as_ref(), &queue));
        let _one_visitor = self.inlets.lock();
        // SAFETY: whoever visits holds the lock of the inlets, and no poll does.
        unsafe { self.receiver.revoke(|old| *old = receiver) };
        self.tell_receives(0);
        self.board.set_taken(0);
        // SAFETY: only the owner, who renews, ends sends.
        unsafe { self.completions.forget() };
        queue
    }

    /// Leaves the completion queues. Afterwards no poll is inside our receives.
    pub(crate) fn detach(&self) {
        CqSlot::release(&self.send_slot, &self.recv_slot);
        // A poll that began before may still come in by its own copy of the list: it must find nothing to do.
        drop(self.renew());
        self.srq.iter().for_each(|srq| srq.detach());
    }
}

impl DisableInChild for DatagramCore {
    fn disable_in_child(&self) {
        self.state.make(Step::Inherit, QpType::Ud);
    }
}
