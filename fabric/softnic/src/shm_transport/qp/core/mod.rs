//! State of a queue pair that its sides share, and that the application thread, the polling threads of its completion
//! queues and the service thread use.

mod admission;
mod completions;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::ring::Layout;
use farcall_shm::{Mutex, WcRing};
use farcall_stats::Block;
use farcall_verbs::{QpCap, QpState, SendRules};

use super::Connected;
use super::counters::QpCounters;
use super::inbound::InboundGrant;
use crate::process::{PeerHandshake, ServiceWork};
use crate::shm_transport::core::ShmCore;
use crate::shm_transport::events::Events;
use crate::shm_transport::flight::{Event, FLIGHT_RECORDS};
use crate::shm_transport::state::{StateCell, StateEvent};
use crate::shm_transport::{CqSlot, QpResources};

/// State of a connected queue pair that both of its sides use.
///
/// The fields are ordered by use, so that each operation touches few cache lines; see [`super::QueuePair`].
#[repr(C)]
pub(crate) struct QpCore {
    pub(crate) stats: Block<QpCounters>,
    pub(crate) shm: Arc<ShmCore>,
    /// Incremented whenever a polling thread continues waiting requests.
    pub(super) app_poll_count: AtomicU32,
    /// `true` if requests wait for the peer.
    pub(super) send_waits: AtomicBool,
    /// `true` if the peer has become ready since the last connect request.
    peer_is_ready: AtomicBool,
    /// `true` if receives cannot be flushed yet, because the peer may be writing to one.
    pub(super) flush_waits: AtomicBool,
    /// `true` if it is in the service thread's list; changed under the lock of the list.
    pub(super) is_listed: AtomicBool,
    /// Protection domain whose memory the peer's messages may be written to.
    pub(crate) receives_pd: u32,
    /// `true` if the receives come from a shared receive queue.
    pub(crate) shares_receives: bool,
    pub(crate) transport: Connected,
    pub(crate) layout: Layout,
    pub(crate) inbound: Mutex<InboundGrant>,
    pub(crate) events: Arc<Events>,
    /// Instance of the peer's process; 0 before the connection was established.
    peer_instance: AtomicU64,
    /// Handshake with the process that must be notified that this queue pair is ready to receive; `None` once it has
    /// completed.
    pub(super) ready_handshake: Mutex<Option<Arc<PeerHandshake>>>,
    /// Work that the service thread continues.
    work: Weak<dyn ServiceWork>,
    pub(crate) pd: u32,
    dest_qpn: AtomicU32,
    pub(crate) recv_slot: CqSlot,
    pub(super) completions: WcRing,
    pub(crate) send_slot: CqSlot,
    pub(super) state: StateCell,
    pub(crate) qpn: u32,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
}

impl QpCore {
    /// Creates the state of a queue pair with this inbound grant. `work` is what the service thread continues.
    pub(super) fn new(
        qpn: u32,
        transport: Connected,
        parts: QpResources,
        layout: Layout,
        inbound: InboundGrant,
        work: Weak<dyn ServiceWork>,
    ) -> Self {
        let stats = Block::<QpCounters>::new(&format!("softnic qp {qpn:#08x}"), FLIGHT_RECORDS);
        stats.transport.set(transport.qp_type() as u64);
        Self {
            stats,
            shm: parts.shm,
            app_poll_count: AtomicU32::new(0),
            send_waits: AtomicBool::new(false),
            peer_is_ready: AtomicBool::new(false),
            flush_waits: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            receives_pd: parts.srq.as_ref().map_or(parts.pd, |srq| srq.pd),
            shares_receives: parts.srq.is_some(),
            transport,
            layout,
            inbound: Mutex::new(inbound),
            events: parts.events,
            peer_instance: AtomicU64::new(0),
            ready_handshake: Mutex::default(),
            work,
            pd: parts.pd,
            dest_qpn: AtomicU32::new(0),
            recv_slot: parts.recv_slot,
            completions: WcRing::new(qpn, parts.cap.max_send_wr as usize),
            send_slot: parts.send_slot,
            state: StateCell::new(),
            qpn,
            cap: parts.cap,
            signal_all: parts.signal_all,
        }
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
