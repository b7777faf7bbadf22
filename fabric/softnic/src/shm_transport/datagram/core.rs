//! State of a datagram queue pair shared by the application thread, the polling threads of its completion queues and
//! the service thread.

use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use farcall_shm::fork::{self, DisableInChild};
use farcall_shm::ring::Layout;
use farcall_shm::{BiasedLock, Mutex, WcRing};
use farcall_stats::Block;
use farcall_verbs::{Access, AsyncEvent, AsyncEventKind, QpCap, QpState, QpType, Result, Sge, Wc};

use super::receiver_context::ReceiverContext;
use super::{
    BlockedDatagrams, BlockedSenders, OutstandingSends, Receiver, ReceiverStatus, Receives, RemoteDatagram,
    RxRingTable,
};
use crate::process::ServiceWork;
use crate::shm_transport::cq::Source;
use crate::shm_transport::events::Events;
use crate::shm_transport::flight::{Event, FLIGHT_RECORDS};
use crate::shm_transport::qp::RecvQueue;
use crate::shm_transport::srq::SrqCore;
use crate::shm_transport::state::{StateCell, StateEvent};
use crate::shm_transport::{CqSlot, QpResources};

pub(crate) struct DatagramCore {
    context: ReceiverContext,
    pub(crate) cap: QpCap,
    srq: Option<Arc<SrqCore>>,
    events: Arc<Events>,
    pub(super) signal_all: bool,
    state: StateCell,
    pub(super) send_slot: CqSlot,
    pub(crate) recv_slot: CqSlot,
    pub(super) completions: WcRing,
    pub(super) outstanding: OutstandingSends,
    /// `true` if the application thread has progressed the outstanding sends since the service thread last did.
    pub(super) is_attended: AtomicBool,
    /// `true` if SQ_DRAINED must be raised once, when no send is outstanding.
    pub(super) drained_event_wanted: AtomicBool,
    /// Destinations from which the service thread must request a ring.
    pub(super) resolving: Mutex<Vec<Arc<BlockedDatagrams>>>,
    pub(super) is_listed: AtomicBool,
    pub(super) receiver: BiasedLock<Receiver>,
    pub(super) rx_rings: Mutex<RxRingTable>,
    pub(super) this: Weak<DatagramCore>,
}

impl Deref for DatagramCore {
    type Target = ReceiverContext;

    #[inline]
    fn deref(&self) -> &ReceiverContext {
        &self.context
    }
}

/// The queue pair itself as a source of completions: those of sends, and of receives that are flushed.
struct OwnCompletions {
    core: Arc<DatagramCore>,
    sends: bool,
    receives: bool,
}

impl Source for OwnCompletions {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        let mut consumed = 0;
        if self.sends {
            while consumed < wc.len()
                // SAFETY: `Source::poll` is called only by the thread that polls the send completion queue, so `pop`
                // has one caller.
                && let Some(completion) = unsafe { self.core.completions.pop() }
            {
                wc[consumed] = completion;
                consumed += 1;
            }
            if self.core.outstanding.count() > 0 {
                consumed += self.core.poll_outstanding(&mut wc[consumed..]);
            }
        }
        if self.receives && self.core.state() == QpState::Err {
            let (core, rest) = (&self.core, &mut wc[consumed..]);
            // SAFETY: `Source::poll` is called only by the thread that polls the receive completion queue, so `owner`
            // has one caller.
            consumed += unsafe { core.receiver.owner(|receiver| receiver.flush(core, rest)) }.unwrap_or(0);
        }
        consumed
    }

    fn may_have_completions(&self) -> bool {
        let flushes = || {
            // SAFETY: `may_have_completions` is called only by the thread that polls the receive completion queue, so
            // `owner` has one caller.
            let receives = unsafe { self.core.receiver.owner(|receiver| receiver.has_receives()) };
            self.core.state() == QpState::Err && receives.unwrap_or(true)
        };
        let sends = || !self.core.completions.is_empty() || self.core.outstanding.count() > 0;
        (self.sends && sends()) || (self.receives && flushes())
    }
}

impl ServiceWork for DatagramCore {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn is_waiting(&self) -> bool {
        !self.resolving.lock().is_empty()
            || (self.outstanding.count() > 0 && self.outstanding.lock().is_waiting())
    }

    /// Requests the rings that are needed, and continues the sends that wait.
    fn resume(&self) {
        self.resolve_all();
        self.continue_sends();
    }
}

impl DatagramCore {
    pub(crate) fn new(qpn: u32, parts: QpResources) -> Result<(Arc<Self>, Arc<RecvQueue>)> {
        let status = ReceiverStatus::create()?;
        let queue = Arc::new(RecvQueue::new(&Self::sizes(&parts.cap)));
        let receiver = Receiver::new(Self::receives(parts.srq.as_ref(), &queue));
        let core = Arc::new_cyclic(|this| Self {
            context: ReceiverContext {
                shm: parts.shm,
                qpn,
                pd: parts.pd,
                blocked_senders: BlockedSenders::default(),
                status,
                stats: Block::new(&format!("softnic ud qp {qpn:#08x}"), FLIGHT_RECORDS),
            },
            cap: parts.cap,
            srq: parts.srq,
            events: parts.events,
            signal_all: parts.signal_all,
            state: StateCell::new(),
            send_slot: parts.send_slot,
            recv_slot: parts.recv_slot,
            completions: WcRing::new(qpn, parts.cap.max_send_wr as usize),
            outstanding: OutstandingSends::default(),
            is_attended: AtomicBool::new(false),
            drained_event_wanted: AtomicBool::new(false),
            resolving: Mutex::default(),
            is_listed: AtomicBool::new(false),
            receiver: BiasedLock::new(receiver),
            rx_rings: Mutex::default(),
            this: this.clone(),
        });
        core.srq.iter().for_each(|srq| srq.attach());
        core.notify_receives(0);
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        Ok((core, queue))
    }

    fn receives(srq: Option<&Arc<SrqCore>>, own: &Arc<RecvQueue>) -> Receives {
        srq.map_or_else(|| Receives::Own(own.clone()), |srq| Receives::Shared(srq.clone()))
    }

    /// Returns whether the receives are those of a shared receive queue.
    pub(crate) fn shares_receives(&self) -> bool {
        self.srq.is_some()
    }

    /// Publishes the number of posted receives to senders. The number of receives left in a shared queue is unknown
    /// until a datagram is matched; a datagram that finds none is then dropped.
    pub(crate) fn notify_receives(&self, posted: u64) {
        self.status.set_posted(if self.srq.is_some() { u64::MAX } else { posted });
        self.blocked_senders.notify(|sender| sender.wants_receives);
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.events.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// Returns the layout of the receive queue.
    fn sizes(cap: &QpCap) -> Layout {
        Layout::new(cap.max_recv_wr, cap.max_recv_sge)
    }

    /// Attaches the queue pair to its completion queues.
    pub(crate) fn attach(self: &Arc<Self>) {
        let (send, recv) = (&self.send_slot, &self.recv_slot);
        let one = send.is_same(recv);
        send.cq.attach_source(
            send.bit,
            Arc::new(OwnCompletions { core: self.clone(), sends: true, receives: one }),
        );
        if !one {
            let own = OwnCompletions { core: self.clone(), sends: false, receives: true };
            recv.cq.attach_source(recv.bit, Arc::new(own));
        }
    }

    /// Delivers a datagram to the oldest receive. Returns `None` if it was dropped.
    ///
    /// # Safety
    /// Only the thread that polls the receive completion queue may call it, and not while it works on the receives.
    pub(crate) unsafe fn deliver_remote(&self, datagram: &RemoteDatagram<'_>) -> Option<Wc> {
        // SAFETY: by the contract of this function only the polling thread calls it, and not from within `owner`, as
        // `BiasedLock::owner` requires.
        unsafe { self.receiver.owner(|receiver| receiver.deliver_remote(&self.context, datagram)) }.flatten()
    }

    pub(crate) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.state.get().qp_state()
    }

    /// Applies an event to the state machine. Returns whether it was legal; otherwise the state is unchanged. Only the
    /// application thread calls it.
    pub(crate) fn apply_event(&self, step: StateEvent) -> bool {
        let Some((from, to)) = self.state.apply(step, QpType::Ud) else { return false };
        if from.qp_state() != to.qp_state() {
            self.stats.state.set(to.qp_state() as u64);
            self.stats.record(Event::State as u64, to.qp_state() as u64);
        }
        true
    }

    /// Returns whether the regions named by the scatter/gather elements permit `need`.
    #[inline]
    pub(crate) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        self.shm.process.regions.allows_all(sges, self.pd, need)
    }

    /// Announces the queue pair to its receive completion queue, so that the next poll flushes receives.
    pub(crate) fn announce_flush(&self) {
        self.recv_slot.cq.announce(self.recv_slot.bit, true);
    }

    /// Stops accepting datagrams, and discards those that were received but not delivered.
    pub(crate) fn close(&self) {
        self.status.close();
        self.close_rx_rings(&mut self.rx_rings.lock());
    }

    /// Begins a new incarnation with a new receive queue, after [`DatagramCore::close`].
    pub(crate) fn renew(&self) -> Arc<RecvQueue> {
        let queue = Arc::new(RecvQueue::new(&Self::sizes(&self.cap)));
        let receiver = Receiver::new(Self::receives(self.srq.as_ref(), &queue));
        let _one_helper = self.rx_rings.lock();
        // SAFETY: `revoke` has one caller at a time because the lock of `rx_rings` is held, and this thread is not
        // inside `owner`, because polls do not call `renew`.
        unsafe { self.receiver.revoke(|old| *old = receiver) };
        self.notify_receives(0);
        self.status.set_consumed(0);
        // SAFETY: only the application thread pushes completions, and it is the caller of `renew`.
        unsafe { self.completions.discard() };
        queue
    }

    /// Detaches the queue pair from its completion queues. No poll accesses its receives afterwards.
    pub(crate) fn detach(&self) {
        CqSlot::release(&self.send_slot, &self.recv_slot);
        // A poll that began earlier may still enter through its copy of the list. It must find an empty queue.
        drop(self.renew());
        self.srq.iter().for_each(|srq| srq.detach());
    }
}

impl DisableInChild for DatagramCore {
    fn disable_in_child(&self) {
        self.state.apply(StateEvent::Inherit, QpType::Ud);
    }
}
