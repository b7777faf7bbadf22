//! A queue pair whose peer is on another host.

use std::collections::VecDeque;
use std::sync::Arc;

use farcall_stats::Block;
use farcall_verbs::{
    Error, PostError, QpAttr, QpCap, QpState, QpType, RecvRules, RecvWr, Result, SendRules, SendWr, Sge, Wc,
};
use farcall_wire::{Qp, QpConfig, Timer, dcqcn};

use super::counters::PairCounters;
use super::gso::Caution;
use super::path::Path;
use super::peer_port::PeerPort;
use super::port::Port;
use super::state::State;
use super::timers::Planned;
use crate::shm_transport::cq::Source;
use crate::shm_transport::events::Events;
use crate::shm_transport::qp::MAX_SGE;
use crate::shm_transport::srq::SrqCore;
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

/// A posted send request.
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) is_signalled: bool,
    /// Number of requests posted before it.
    pub(super) ordinal: u64,
    count: usize,
    sges: [Sge; MAX_SGE],
    pub(super) inline: Option<Vec<u8>>,
}

impl Posted {
    pub(super) fn new(wr: &SendWr<'_>, is_signalled: bool, ordinal: u64, inline: Option<Vec<u8>>) -> Self {
        let mut sges = [Sge::default(); MAX_SGE];
        // Inline elements need not remain valid after posting.
        let count = if inline.is_some() { 0 } else { wr.sges().len().min(MAX_SGE) };
        sges[..count].copy_from_slice(&wr.sges()[..count]);
        Self { wr_id: wr.wr_id, is_signalled, ordinal, count, sges, inline }
    }

    pub(super) fn sges(&self) -> &[Sge] {
        &self.sges[..self.count]
    }
}

/// Protocol state of a queue pair with its types of posted requests.
pub(super) use crate::shm_transport::srq::Receive;

pub(super) type Transport = Qp<Posted, Receive>;

/// A queue pair in its port.
pub(super) struct Pair {
    pub(super) transport: Transport,
    pub(super) side: Side,
}

/// State of a queue pair in its port in addition to the protocol's.
pub(super) struct Side {
    pub(super) qpn: u32,
    pub(super) pd: u32,
    pub(super) receives_pd: u32,
    pub(super) path: Path,
    pub(super) peer_port: PeerPort,
    pub(super) cap: QpCap,
    pub(super) signal_all: bool,
    pub(super) events: Arc<Events>,
    pub(super) srq: Option<Arc<SrqCore>>,
    pub(super) send_slot: CqSlot,
    pub(super) recv_slot: CqSlot,
    pub(super) receives: VecDeque<Receive>,
    /// Completions that wait to be polled. That of a send contains the ordinal of its request, whose queue entry it
    /// frees.
    pub(super) sent: VecDeque<(Wc, u64)>,
    pub(super) received: VecDeque<Wc>,
    pub(super) spare: Vec<Vec<u8>>,
    /// Number of send requests posted, and of those that have ended according to a polled completion.
    pub(super) posted: u64,
    pub(super) reaped: u64,
    /// Number of receives whose completions were not polled.
    pub(super) unpolled_receives: usize,
    pub(super) deadlines: [Option<u64>; Timer::ALL.len()],
    pub(super) planned: Planned,
    /// `true` if a packet of the current batch was for it.
    pub(super) is_touched: bool,
    pub(super) caution: Caution,
    pub(super) counters: Block<PairCounters>,
}

/// Resources of a queue pair that was created before its peer was known.
pub(crate) struct PairParts {
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
pub(crate) struct NetPair {
    pub(super) port: Arc<Port>,
    pub(super) shm: Arc<ShmTransport>,
    pub(super) qpn: u32,
    pub(super) send_rules: SendRules,
    pub(super) recv_rules: RecvRules,
}

impl NetPair {
    /// Connects a queue pair in INIT to a peer on another host. `init` are the attributes of the transition to INIT,
    /// `rtr` those of the transition to RTR. `take_receives` returns the receives posted in INIT; it is called when no
    /// later step can fail.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened, or if there is no route to the address.
    pub(crate) fn connect(
        parts: PairParts,
        take_receives: impl FnOnce() -> Vec<Receive>,
        init: &QpAttr,
        rtr: &QpAttr,
    ) -> Result<Self> {
        let path = Path::to("modify_qp", &parts.shm.process, &rtr.ah.unwrap_or_default())?;
        let port = Port::open(&parts.shm)?;
        port.steer(parts.qpn)?;
        let receives = take_receives();
        let config = QpConfig {
            qpn: parts.qpn,
            transport: parts.qp_type,
            has_srq: parts.srq.is_some(),
            port_mtu: farcall_verbs::Mtu::Mtu4096,
            message_bytes_max: MESSAGE_BYTES_MAX,
            unacknowledged_min: UNACKNOWLEDGED_MIN,
            unacknowledged_max: UNACKNOWLEDGED_MAX,
            read_packets_max: READ_PACKETS_MAX,
            rate_control: dcqcn,
        };
        let side = Side {
            qpn: parts.qpn,
            pd: parts.pd,
            receives_pd: parts.srq.as_ref().map_or(parts.pd, |srq| srq.pd),
            path,
            peer_port: PeerPort::default(),
            cap: parts.cap,
            signal_all: parts.signal_all,
            events: parts.events,
            srq: parts.srq,
            send_slot: parts.send_slot,
            recv_slot: parts.recv_slot,
            unpolled_receives: receives.len(),
            receives: receives.into(),
            sent: VecDeque::new(),
            received: VecDeque::new(),
            spare: Vec::new(),
            posted: 0,
            reaped: 0,
            deadlines: [None; _],
            planned: Planned::default(),
            is_touched: false,
            caution: Caution::of(parts.qp_type),
            counters: PairCounters::of(parts.qpn, parts.qp_type, path, rtr),
        };
        let send_rules = SendRules::new(crate::NAME, parts.qp_type, &side.cap);
        let recv_rules = RecvRules::of_pair(&side.cap, side.srq.is_some());
        let (send, recv) = (side.send_slot.clone(), side.recv_slot.clone());
        let (qpn, shm) = (parts.qpn, parts.shm);
        port.with(|state| drop(state.pairs.insert(qpn, Box::new(Pair { transport: Qp::new(config), side }))));
        let one = send.is_same(&recv);
        let source = |sends, receives| Arc::new(Completions { port: port.clone(), qpn, sends, receives });
        send.cq.attach_source(send.bit, source(true, one));
        if !one {
            recv.cq.attach_source(recv.bit, source(false, true));
        }
        let pair = Self { port, shm, qpn, send_rules, recv_rules };
        pair.with(|state| state.modify(qpn, init));
        pair.with(|state| state.modify(qpn, rtr));
        Ok(pair)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        self.port.with(work)
    }

    pub(crate) fn state(&self) -> QpState {
        // In a forked child the lock may be held by a thread that does not exist.
        if self.shm.process.is_inherited() {
            return QpState::Err;
        }
        self.with(|state| state.pairs.get(&self.qpn).map_or(QpState::Err, |pair| pair.transport.state()))
    }

    /// Changes state and attributes. A transition to RESET uses [`NetPair::close`] instead.
    ///
    /// # Errors
    /// Returns an error if the transition or its attributes are not permitted.
    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.with(|state| {
            let Some(pair) = state.pairs.get(&self.qpn) else { return Ok(()) };
            attr.check_transition(pair.transport.config().transport, self.qpn, pair.transport.state())?;
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
    /// Returns the errors of [`NetPair::post_send`].
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
        self.shm.process.require_here(operation).map_err(refuse)
    }

    /// Closes the queue pair and discards all posted requests. Acknowledgements owed to its peer for received messages
    /// are sent before.
    pub(crate) fn close(&self) {
        self.with(|state| {
            state.settle_debts();
            drop(state.pairs.remove(&self.qpn));
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
    fn take(&self, state: &mut State, wc: &mut [Wc]) -> usize {
        let Some(pair) = state.pairs.get_mut(&self.qpn) else { return 0 };
        let side = &mut pair.side;
        let mut taken = 0;
        while self.sends && taken < wc.len() {
            let Some((completion, ordinal)) = side.sent.pop_front() else { break };
            side.reaped = side.reaped.max(ordinal + 1);
            wc[taken] = completion;
            taken += 1;
        }
        while self.receives && taken < wc.len() {
            let Some(completion) = side.received.pop_front() else { break };
            if side.srq.is_none() {
                side.unpolled_receives -= 1;
            }
            wc[taken] = completion;
            taken += 1;
        }
        taken
    }
}

impl Source for Completions {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        self.port.poll(|state| self.take(state, wc))
    }

    /// Always `true`, because polling it also polls the port for packets.
    fn may_have_completions(&self) -> bool {
        true
    }
}
