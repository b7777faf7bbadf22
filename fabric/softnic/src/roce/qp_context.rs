//! State of a queue pair in its port: the protocol's, and what the port needs besides it.

use std::collections::VecDeque;
use std::sync::Arc;

use farcall_stats::Block;
use farcall_verbs::{QpCap, SendWr, Sge, Wc};
use farcall_wire::{Qp, Timer};

use super::counters::RoceQpCounters;
use super::gso::GsoFallback;
use super::path::Path;
use super::peer_port::PeerPort;
use super::timers::ScheduledTimer;
use crate::shm_transport::CqSlot;
use crate::shm_transport::events::Events;
use crate::shm_transport::qp::MAX_SGE;
use crate::shm_transport::srq::{Receive, SrqCore};

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
pub(super) type Transport = Qp<Posted, Receive>;

/// A queue pair in its port.
pub(super) struct RoceQpState {
    pub(super) transport: Transport,
    pub(super) context: QpContext,
}

/// State of a queue pair in its port in addition to the protocol's.
pub(super) struct QpContext {
    pub(super) qpn: u32,
    pub(super) pd: u32,
    pub(super) receives_pd: u32,
    pub(super) path: Path,
    pub(super) src_port: u16,
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
    pub(super) released: u64,
    /// Number of receives whose completions were not polled.
    pub(super) unpolled_receives: usize,
    pub(super) deadlines: [Option<u64>; Timer::ALL.len()],
    pub(super) scheduled: ScheduledTimer,
    /// `true` if a packet of the current batch was for it.
    pub(super) is_active: bool,
    pub(super) gso_fallback: GsoFallback,
    pub(super) counters: Block<RoceQpCounters>,
}
