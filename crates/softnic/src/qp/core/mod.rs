//! What a queue pair's owner, its completion queues' owners and the service thread share.

mod completions;
mod lives;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_stats::Block;
use farcall_verbs::{QpCap, QpState, Result};

use super::Connected;
use super::counters::QpCounters;
use super::inbound::Inbound;
use super::place::Place;
use super::receive::{RecvQueue, RecvSide};
use super::send::SendSide;
use super::shared_receive::SharedSide;
use crate::biased::Biased;
use crate::events::Events;
use crate::flight::{Event, FLIGHT_RECORDS};
use crate::fork::{self, Orphan};
use crate::handoff::Handoff;
use crate::process::Process;
use crate::ring::{Consumer, Layout};
use crate::service::Waits;
use crate::shared::SharedMem;
use crate::srq::SrqCore;
use crate::wc_ring::WcRing;

/// What a message touches comes first, as few cache lines as it fits in: of a thousand pairs in turn each line is a miss.
/// The first is for messages and their counting, the second and third, with the fourth, for every look of a poll, and
/// the third to the sixth for posting, which continue in [`SendSide`].
#[repr(C, align(64))]
pub(crate) struct QpCore {
    pub(super) stats: Block<QpCounters>,
    pub(super) process: Arc<Process>,
    pd: u32,
    dest_qpn: AtomicU32,
    pub(super) recv_place: Place,
    recv: Biased<RecvSide>,
    completions: WcRing,
    pub(super) send_place: Place,
    state: AtomicU32,
    qpn: u32,
    cap: QpCap,
    signal_all: bool,
    pub(super) send: Handoff<SendSide>,
    pub(super) layout: Layout,
    transport: Connected,
    /// Requests wait for the peer.
    send_waits: AtomicBool,
    /// Changes whenever who polls continues them.
    attendance: AtomicU32,
    /// Receives cannot be flushed yet, because the peer is inside one.
    flush_waits: AtomicBool,
    /// It went to the error state in this life.
    has_failed: AtomicBool,
    /// It was told that a message came in RTR.
    greeted: AtomicBool,
    /// The pair is closed to the peer, and every access from now on sees it.
    revoked: AtomicBool,
    /// In the service thread's list; changed under its lock.
    is_listed: AtomicBool,
    /// Instead of `recv`, if the receives are shared.
    shared: Option<SharedSide>,
    pub(super) inbound: Mutex<Inbound>,
    events: Arc<Events>,
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
            completions: WcRing::new(qpn, parts.cap.max_send_wr as usize),
            send_waits: AtomicBool::new(false),
            attendance: AtomicU32::new(0),
            flush_waits: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
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
}

impl Orphan for QpCore {
    fn orphan(&self) {
        self.state.store(QpState::Reset as u32, Ordering::Relaxed);
    }
}
