//! State of a queue pair shared by the application thread, the polling threads of its completion queues and the service
//! thread.

mod admission;
mod completions;

use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use farcall_stats::Block;
use farcall_verbs::{QpCap, QpState, Result, SendRules};

use super::Connected;
use super::counters::QpCounters;
use super::inbound::InboundGrant;
use super::receive::RecvSide;
use super::recv_queue::RecvQueue;
use super::send::SendSide;
use super::shared_receive::SharedReceiveSide;
use crate::process::{PeerHandshake, ServiceWork};
use crate::shm_transport::events::Events;
use crate::shm_transport::flight::{Event, FLIGHT_RECORDS};
use crate::shm_transport::srq::SrqCore;
use crate::shm_transport::state::{StateCell, StateEvent};
use crate::shm_transport::{CqSlot, QpResources, ShmTransport};
use farcall_shm::fork::{self, DisableInChild};
use farcall_shm::ring::{Consumer, Layout};
use farcall_shm::{BiasedLock, Mutex, PendingLock, SharedMem, WcRing};

/// State of a connected queue pair.
///
/// The fields are ordered by use, so that each operation touches few cache lines. A process that uses a thousand queue
/// pairs in turn misses on each line. The first line serves messages and their counters. The second, third and fourth
/// serve every poll. The third to the sixth serve posting, which continues in [`SendSide`].
#[repr(C, align(64))]
pub(crate) struct QpCore {
    pub(crate) stats: Block<QpCounters>,
    pub(crate) shm: Arc<ShmTransport>,
    pub(crate) pd: u32,
    dest_qpn: AtomicU32,
    pub(crate) recv_slot: CqSlot,
    recv: BiasedLock<RecvSide>,
    completions: WcRing,
    pub(crate) send_slot: CqSlot,
    state: StateCell,
    pub(crate) qpn: u32,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) send: PendingLock<SendSide>,
    pub(crate) layout: Layout,
    pub(crate) transport: Connected,
    /// `true` if requests wait for the peer.
    send_waits: AtomicBool,
    /// Incremented whenever a polling thread continues waiting requests.
    app_poll_count: AtomicU32,
    /// `true` if the peer has become ready since the last connect request.
    peer_is_ready: AtomicBool,
    /// `true` if receives cannot be flushed yet, because the peer may be writing to one.
    flush_waits: AtomicBool,
    /// `true` if it is in the service thread's list; changed under the lock of the list.
    is_listed: AtomicBool,
    /// Replaces `recv` if the receives are shared.
    shared: Option<SharedReceiveSide>,
    pub(crate) inbound: Mutex<InboundGrant>,
    pub(crate) events: Arc<Events>,
    /// Instance of the peer's process; 0 before the connection was established.
    peer_instance: AtomicU64,
    /// Handshake with the process that must be notified that this queue pair is ready to receive; `None` once it has
    /// completed.
    ready_handshake: Mutex<Option<Arc<PeerHandshake>>>,
    pub(crate) this: Weak<QpCore>,
}

const _: () = {
    const LINE_BYTES: usize = 64;
    assert!(offset_of!(QpCore, recv_slot) < LINE_BYTES && offset_of!(QpCore, recv) == LINE_BYTES);
    assert!(offset_of!(QpCore, completions) / LINE_BYTES == 2);
    // The fourth line ends with the start of the send side, whose lock polls try and posts acquire.
    assert!(offset_of!(QpCore, send_slot) / LINE_BYTES == 3 && offset_of!(QpCore, state) / LINE_BYTES == 3);
    assert!(offset_of!(QpCore, cap) / LINE_BYTES == 3 && offset_of!(QpCore, send) / LINE_BYTES == 3);
    assert!(offset_of!(SendSide, connection) < LINE_BYTES);
};

impl ServiceWork for QpCore {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn is_waiting(&self) -> bool {
        self.send_waits.load(Ordering::Acquire)
            || self.flush_waits.load(Ordering::Acquire)
            || self.ready_handshake.lock().is_some()
    }

    fn app_poll_count(&self) -> Option<u32> {
        let is_alone = self.flush_waits.load(Ordering::Acquire) || self.ready_handshake.lock().is_some();
        (!is_alone).then(|| self.app_poll_count.load(Ordering::Relaxed))
    }

    fn wait_count(&self) -> u64 {
        self.stats.waits.get()
    }

    fn resume(&self) {
        if self.ready_handshake.lock().is_some() {
            self.notify_ready();
        }
        // Completions are announced where they occur. The application thread is not woken otherwise.
        self.progress_sends(false);
        self.continue_receives();
        if self.flush_waits.load(Ordering::Acquire) && self.is_quiesced() {
            self.announce_locally(true);
        }
    }
}

impl QpCore {
    pub(crate) fn new(
        qpn: u32,
        transport: Connected,
        parts: QpResources,
    ) -> Result<(Arc<Self>, Arc<RecvQueue>, SharedMem)> {
        let layout = match &parts.srq {
            None => Layout::new(parts.cap.max_recv_wr, parts.cap.max_recv_sge),
            Some(srq) => Layout::for_shared(srq.max_sge),
        };
        let queue = Arc::new(RecvQueue::new(&layout));
        let inbound = InboundGrant::create(&parts.shm.pair_memory, &layout, 0, queue.clone())?;
        let mem = inbound.mem.clone();
        let recv = RecvSide::new(Consumer::new(inbound.mem.clone(), &layout), queue.clone());
        let core = Arc::new_cyclic(|this| Self {
            shm: parts.shm,
            events: parts.events,
            qpn,
            pd: parts.pd,
            cap: parts.cap,
            layout,
            transport,
            signal_all: parts.signal_all,
            state: StateCell::new(),
            dest_qpn: AtomicU32::new(0),
            send_slot: parts.send_slot,
            recv_slot: parts.recv_slot,
            completions: WcRing::new(qpn, parts.cap.max_send_wr as usize),
            send_waits: AtomicBool::new(false),
            peer_is_ready: AtomicBool::new(false),
            app_poll_count: AtomicU32::new(0),
            flush_waits: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            send: PendingLock::new(SendSide::new(transport)),
            recv: BiasedLock::new(recv),
            shared: parts.srq.map(|srq| SharedReceiveSide::new(Consumer::new(mem.clone(), &layout), srq)),
            inbound: Mutex::new(inbound),
            stats: Block::new(&format!("softnic qp {qpn:#08x}"), FLIGHT_RECORDS),
            peer_instance: AtomicU64::new(0),
            ready_handshake: Mutex::default(),
            this: this.clone(),
        });
        core.stats.transport.set(transport.qp_type() as u64);
        let weak: Weak<Self> = Arc::downgrade(&core);
        fork::add_queue(weak);
        Ok((core, queue, mem))
    }

    /// Returns the shared receive queue that it uses.
    pub(crate) fn srq(&self) -> Option<Arc<SrqCore>> {
        self.shared.as_ref().map(|shared| shared.srq.clone())
    }

    /// Returns the protection domain whose memory the peer's messages may be written to.
    pub(crate) fn receives_pd(&self) -> u32 {
        self.shared.as_ref().map_or(self.pd, |shared| shared.srq.pd)
    }

    /// Returns whether the receives come from a shared receive queue.
    pub(crate) fn shares_receives(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns whether the peer may write to a receive now. Receives of the queue pair's own queue are always offered.
    pub(crate) fn offers_receive(&self) -> bool {
        self.shared.as_ref().is_none_or(SharedReceiveSide::is_offered)
    }

    /// Returns the rules that posted sends must satisfy.
    #[inline]
    pub(crate) fn send_rules(&self) -> SendRules {
        SendRules::new(crate::NAME, self.transport.qp_type(), &self.cap)
    }

    pub(crate) fn dest_qpn(&self) -> u32 {
        self.dest_qpn.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dest_qpn(&self, qpn: u32) {
        self.dest_qpn.store(qpn, Ordering::Relaxed);
        self.stats.peer_qp_num.set(qpn.into());
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.state.get().qp_state()
    }

    /// Applies an event to the state machine. Returns whether it was legal; otherwise the state is unchanged.
    pub(crate) fn apply_event(&self, event: StateEvent) -> bool {
        let Some((from, to)) = self.state.apply(event, self.transport.qp_type()) else { return false };
        if from.qp_state() != to.qp_state() {
            self.stats.state.set(to.qp_state() as u64);
            self.stats.record(Event::State as u64, to.qp_state() as u64);
        }
        true
    }
}

impl DisableInChild for QpCore {
    fn disable_in_child(&self) {
        self.state.apply(StateEvent::Inherit, self.transport.qp_type());
    }
}
