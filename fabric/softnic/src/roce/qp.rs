//! A queue pair whose peer is on another host.

use std::collections::VecDeque;
use std::sync::Arc;

use farcall_verbs::{
    Error, PostError, QpAttr, QpCap, QpState, QpType, RecvRules, RecvWr, Result, SendRules, SendWr, Wc,
};
use farcall_wire::codec::UDP_PORT;
use farcall_wire::{Qp, QpConfig, dcqcn};

use super::counters::RoceQpCounters;
use super::gso::GsoFallback;
use super::path::Path;
use super::peer_port::PeerPort;
use super::port::Port;
use super::qp_context::{QpContext, RoceQpState};
use super::state::State;
use super::timers::ScheduledTimer;
use crate::shm_transport::cq::Source;
use crate::shm_transport::events::Events;
use crate::shm_transport::srq::{Receive, SrqCore};
use crate::shm_transport::{CqSlot, ShmTransport};

/// Initial limit on unacknowledged packets: this many fit into the socket buffer of a peer that polls rarely.
const UNACKNOWLEDGED_MIN: u32 = 128;
/// Limit on unacknowledged packets while none are lost: this many fit into a socket buffer if the system permits a
/// large one.
const UNACKNOWLEDGED_MAX: u32 = 1_024;
/// Maximum number of data packets that one READ request returns.
const READ_PACKETS_MAX: u32 = 128;
/// Maximum length of a message in bytes.
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Resources of a queue pair that was created before its peer was known.
pub(crate) struct RoceQpResources {
    pub(crate) shm: Arc<ShmTransport>,
    pub(crate) events: Arc<Events>,
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) srq: Option<Arc<SrqCore>>,
    pub(crate) send_slot: CqSlot,
    pub(crate) recv_slot: CqSlot,
}

/// The program's handle of a queue pair whose peer is on another host.
pub(crate) struct RoceQp {
    pub(super) port: Arc<Port>,
    pub(super) shm: Arc<ShmTransport>,
    pub(super) qpn: u32,
    pub(super) send_rules: SendRules,
    pub(super) recv_rules: RecvRules,
}

impl RoceQp {
    /// Connects a queue pair in INIT to a peer on another host. `init` are the attributes of the transition to INIT,
    /// `rtr` those of the transition to RTR. `take_receives` returns the receives posted in INIT; it is called when no
    /// later step can fail.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened, or if there is no route to the address.
    pub(crate) fn connect(
        resources: RoceQpResources,
        take_receives: impl FnOnce() -> Vec<Receive>,
        init: &QpAttr,
        rtr: &QpAttr,
    ) -> Result<Self> {
        let path = Path::to("modify_qp", &resources.shm.core.process, &rtr.ah.unwrap_or_default())?;
        let port = Port::open(&resources.shm)?;
        port.steer(resources.qpn)?;
        let receives = take_receives();
        let config = QpConfig {
            qpn: resources.qpn,
            transport: resources.qp_type,
            has_srq: resources.srq.is_some(),
            port_mtu: farcall_verbs::Mtu::Mtu4096,
            message_bytes_max: MESSAGE_BYTES_MAX,
            unacknowledged_min: UNACKNOWLEDGED_MIN,
            unacknowledged_max: UNACKNOWLEDGED_MAX,
            read_packets_max: READ_PACKETS_MAX,
            rate_control: dcqcn,
        };
        let mut context = QpContext {
            qpn: resources.qpn,
            pd: resources.pd,
            receives_pd: resources.srq.as_ref().map_or(resources.pd, |srq| srq.pd),
            path,
            src_port: UDP_PORT,
            peer_port: PeerPort::default(),
            cap: resources.cap,
            signal_all: resources.signal_all,
            events: resources.events,
            srq: resources.srq,
            send_slot: resources.send_slot,
            recv_slot: resources.recv_slot,
            unpolled_receives: receives.len(),
            receives: receives.into(),
            sent: VecDeque::new(),
            received: VecDeque::new(),
            spare: Vec::new(),
            posted: 0,
            released: 0,
            deadlines: [None; _],
            scheduled: ScheduledTimer::default(),
            is_active: false,
            gso_fallback: GsoFallback::new(resources.qp_type),
            counters: RoceQpCounters::of(resources.qpn, resources.qp_type, path, rtr),
        };
        let send_rules = SendRules::new(crate::NAME, resources.qp_type, &context.cap);
        let recv_rules = RecvRules::of_pair(&context.cap, context.srq.is_some());
        let (send, recv) = (context.send_slot.clone(), context.recv_slot.clone());
        let (qpn, shm) = (resources.qpn, resources.shm);
        port.with(|state| {
            let source_port = state.send_sockets.acquire(qpn);
            context.src_port = source_port.port;
            context.counters.source_port.set(source_port.port.into());
            state.counters().pairs_on_shared_ports.add(source_port.is_shared.into());
            drop(state.qps.insert(qpn, Box::new(RoceQpState { transport: Qp::new(config), context })));
        });
        let has_one_cq = send.is_same(&recv);
        let source = |sends, receives| Arc::new(Completions { port: port.clone(), qpn, sends, receives });
        send.cq.attach_source(send.bit, source(true, has_one_cq));
        if !has_one_cq {
            recv.cq.attach_source(recv.bit, source(false, true));
        }
        let qp = Self { port, shm, qpn, send_rules, recv_rules };
        qp.with(|state| state.modify(qpn, init));
        qp.with(|state| state.modify(qpn, rtr));
        Ok(qp)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        self.port.with(work)
    }

    pub(crate) fn state(&self) -> QpState {
        // In a forked child the lock may be held by a thread that does not exist.
        if self.shm.core.process.is_inherited() {
            return QpState::Err;
        }
        self.with(|state| state.qps.get(&self.qpn).map_or(QpState::Err, |qp| qp.transport.state()))
    }

    /// Changes state and attributes. A transition to RESET uses [`RoceQp::close`] instead.
    ///
    /// # Errors
    /// Returns an error if the transition or its attributes are not permitted.
    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.with(|state| {
            let Some(qp) = state.qps.get(&self.qpn) else { return Ok(()) };
            attr.check_transition(qp.transport.config().transport, self.qpn, qp.transport.state())?;
            state.modify(self.qpn, attr);
            Ok(())
        })
    }

    /// Posts send requests.
    ///
    /// # Errors
    /// Returns an error with the first request that violates a rule.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    pub(crate) unsafe fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.require_here("post_send")?;
        // SAFETY: by the contract of this function the requests' memory is valid, as `post_sends` requires.
        self.with(|state| unsafe { state.post_sends(self, wrs) })
    }

    /// Checks send requests and posts none.
    ///
    /// # Errors
    /// Returns the errors of [`RoceQp::post_send`].
    pub(crate) fn check_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.require_here("post_send")?;
        self.with(|state| state.check_sends(self, wrs))
    }

    /// Posts receives.
    ///
    /// # Errors
    /// Returns an error with the first request that violates a rule.
    pub(crate) fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.require_here("post_recv")?;
        self.with(|state| state.post_receives(self, wrs))
    }

    fn require_here(&self, operation: &'static str) -> Result<(), PostError> {
        let refuse = |source: Error| PostError::new(0, source);
        self.shm.core.process.require_here(operation).map_err(refuse)
    }

    /// Closes the queue pair and discards all posted requests. Acknowledgements owed to its peer for received messages
    /// are sent before.
    pub(crate) fn close(&self) {
        self.with(|state| {
            state.send_held_acknowledgements();
            if let Some(qp) = state.qps.remove(&self.qpn) {
                state.send_sockets.release(qp.context.src_port);
            }
        });
    }
}

/// Completions of a queue pair at one of its completion queues.
struct Completions {
    port: Arc<Port>,
    qpn: u32,
    sends: bool,
    receives: bool,
}

impl Completions {
    fn deliver(&self, state: &mut State, wc: &mut [Wc]) -> usize {
        let Some(qp) = state.qps.get_mut(&self.qpn) else { return 0 };
        let context = &mut qp.context;
        let mut delivered = 0;
        while self.sends && delivered < wc.len() {
            let Some((completion, ordinal)) = context.sent.pop_front() else { break };
            context.released = context.released.max(ordinal + 1);
            wc[delivered] = completion;
            delivered += 1;
        }
        while self.receives && delivered < wc.len() {
            let Some(completion) = context.received.pop_front() else { break };
            if context.srq.is_none() {
                context.unpolled_receives -= 1;
            }
            wc[delivered] = completion;
            delivered += 1;
        }
        delivered
    }
}

impl Source for Completions {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        self.port.poll(|state| self.deliver(state, wc))
    }

    /// Always `true`, because polling it also polls the port for packets.
    fn may_have_completions(&self) -> bool {
        true
    }
}
