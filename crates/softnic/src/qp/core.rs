//! What a queue pair's owner, its completion queues' owners and the service thread share.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use farcall_stats::Block;
use farcall_verbs::{
    Access, AsyncEvent, AsyncEventKind, QpCap, QpState, Result, SendFlags, Sge, Wc, WcStatus, WrOpcode,
};

use super::counters::{Event, FLIGHT_RECORDS, QpCounters};
use super::receive::{RecvQueue, RecvSide};
use super::send::{SendSide, completion_opcode};
use super::way_in::{WayIn, is_inside, wait_until};
use super::{Accept, Connected, Doorbells};
use crate::biased::Biased;
use crate::cq::CqCore;
use crate::fence;
use crate::handoff::Handoff;
use crate::peer::Peer;
use crate::process::Process;
use crate::regions::Granted;
use crate::rendezvous::{ReplyBody, refusal};
use crate::ring::{ACCEPT, Consumer, Layout};
use crate::shared::{Segment, SharedMem};
use crate::wc_ring::WcRing;

/// How long revocation waits for an access under way; longer only if the peer is stopped inside one.
pub(crate) const HAZARD_WAIT: Duration = Duration::from_millis(100);

/// A completion queue and our bit there.
pub(super) struct Place {
    pub(super) cq: Arc<CqCore>,
    pub(super) bit: u32,
}

/// Who asks for the way in: process instance, queue pair number, life of the queue pair.
pub(crate) type Asker = (u64, u32, u32);

/// The inbound segment as long as it may still be granted.
pub(super) struct Inbound {
    segment: Segment,
    way: WayIn,
    granted_to: Option<Asker>,
    /// The client that was granted it.
    client: Option<u64>,
    /// How often the pair was reset.
    life: u32,
    /// Set when connected.
    doorbells: Option<Arc<Doorbells>>,
}

pub(crate) struct QpCore {
    pub(super) process: Arc<Process>,
    qpn: u32,
    pd: u32,
    cap: QpCap,
    pub(super) layout: Layout,
    transport: Connected,
    signal_all: bool,
    state: AtomicU32,
    dest_qpn: AtomicU32,
    pub(super) send_place: Place,
    pub(super) recv_place: Place,
    completions: WcRing,
    /// Requests wait for the peer.
    send_waits: AtomicBool,
    /// Receives cannot be flushed yet, because the peer is inside one.
    flush_waits: AtomicBool,
    /// In the service thread's list; changed under its lock.
    pub(crate) is_listed: AtomicBool,
    pub(super) send: Handoff<SendSide>,
    recv: Biased<RecvSide>,
    pub(super) inbound: Mutex<Inbound>,
    pub(super) stats: Block<QpCounters>,
    this: Weak<QpCore>,
}

/// What a queue pair is made of.
pub(super) struct Parts {
    pub(super) process: Arc<Process>,
    pub(super) pd: u32,
    pub(super) transport: Connected,
    pub(super) cap: QpCap,
    pub(super) signal_all: bool,
    pub(super) send_place: Place,
    pub(super) recv_place: Place,
}

impl Inbound {
    pub(super) fn create(layout: &Layout, life: u32) -> Result<Self> {
        let segment = Segment::create("farcall-qp", layout.len_bytes())?;
        let mem = segment.memory();
        layout.write_header(&mem);
        let way = WayIn { mem, peer: None, initiator: None };
        Ok(Self { segment, way, granted_to: None, client: None, life, doorbells: None })
    }
}

impl QpCore {
    pub(super) fn new(qpn: u32, parts: Parts) -> Result<(Arc<Self>, Arc<RecvQueue>, SharedMem)> {
        let layout = Layout::new(parts.cap.max_recv_wr, parts.cap.max_recv_sge);
        let inbound = Inbound::create(&layout, 0)?;
        let mem = inbound.way.mem.clone();
        let queue = Arc::new(RecvQueue::new(&layout));
        let recv = RecvSide::new(Consumer::new(mem.clone(), &layout), queue.clone());
        let core = Arc::new_cyclic(|this| Self {
            process: parts.process,
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
            completions: WcRing::new(parts.cap.max_send_wr as usize),
            send_waits: AtomicBool::new(false),
            flush_waits: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            send: Handoff::new(SendSide::new(parts.transport)),
            recv: Biased::new(recv),
            inbound: Mutex::new(inbound),
            stats: Block::new(&format!("softnic qp {qpn:#08x}"), FLIGHT_RECORDS),
            this: this.clone(),
        });
        Ok((core, queue, mem))
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd
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
        match self.state.load(Ordering::Acquire) {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            5 => QpState::Sqe,
            _ => QpState::Err,
        }
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Release);
        self.stats.record(Event::State as u64, state as u64);
    }

    pub(super) fn lock_inbound(&self) -> std::sync::MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- Completions -------------------------------------------------------------------------------------------------

    /// Delivers completions; called by the owner of a completion queue.
    #[inline]
    pub(crate) fn poll(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.send.is_open() {
            self.continue_sends();
        }
        let mut taken = 0;
        if sends {
            while taken < wc.len()
                // SAFETY: completions are taken by the owner of the one send completion queue only.
                && let Some(completion) = unsafe { self.completions.pop() }
            {
                wc[taken] = completion;
                taken += 1;
            }
        }
        if receives && taken < wc.len() {
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.resident(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        taken
    }

    /// Continues requests that wait, unless somebody does already.
    pub(crate) fn continue_sends(&self) {
        if let Some(mut send) = self.send.visitor() {
            send.resume(self);
        }
    }

    /// Whether a poll may find something.
    pub(crate) fn has_something(&self, sends: bool, receives: bool) -> bool {
        self.send.is_open()
            || (sends && !self.completions.is_empty())
            // SAFETY: as in `poll`: only the owner of the receive completion queue is the resident.
            || (receives && unsafe { self.recv.resident(|recv| recv.has_something(self)) }.unwrap_or(true))
    }

    /// Send completions not yet polled.
    pub(super) fn unpolled(&self) -> usize {
        self.completions.len()
    }

    /// Ends a send request; a success makes a completion only if it is signalled.
    #[inline]
    pub(super) fn complete_send(&self, wr_id: u64, opcode: WrOpcode, flags: SendFlags, status: WcStatus) {
        if !status.is_success() {
            self.stats.send_errors.increment();
            self.stats.record(Event::SendFailed as u64, status.0.into());
        }
        if status.is_success() && !self.signal_all && !flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let completion = Wc::ended(wr_id, self.qpn, completion_opcode(opcode), status);
        // SAFETY: called only from inside the send side, by one thread; posting keeps a place for every request.
        unsafe { self.completions.push(completion) };
        self.send_place.cq.announce(self.send_place.bit, !status.is_success());
    }

    /// Makes the owners of both completion queues look here.
    pub(crate) fn announce_locally(&self, solicited: bool) {
        self.send_place.cq.announce(self.send_place.bit, solicited);
        self.recv_place.cq.announce(self.recv_place.bit, solicited);
    }

    // --- Waiting requests --------------------------------------------------------------------------------------------

    /// Lets the service thread wake our owner from time to time.
    pub(super) fn retry_later(&self) {
        self.process.service.retry(self, &self.this);
    }

    pub(super) fn set_send_waits(&self, waits: bool) {
        self.send_waits.store(waits, Ordering::Release);
    }

    /// Receives cannot be flushed now (true), or were (false).
    pub(super) fn set_flush_waits(&self, waits: bool) {
        if self.flush_waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.retry_later();
        }
    }

    /// Whether our owner must look here from time to time.
    pub(crate) fn keeps_waiting(&self) -> bool {
        self.send_waits.load(Ordering::Acquire) || self.flush_waits.load(Ordering::Acquire)
    }

    /// Whether local elements are allowed.
    #[inline]
    pub(super) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        sges.iter().all(|sge| {
            sge.length == 0 || self.process.regions.allows(sge.lkey, self.pd, sge.addr, sge.length, need)
        })
    }

    /// After posting receives: wakes a peer that waits for one.
    #[cold]
    pub(super) fn give_credit(&self) {
        let inbound = self.lock_inbound();
        if let Some(doorbells) = &inbound.doorbells {
            doorbells.give_credit(&inbound.way.mem);
        }
    }

    /// Refuses a request posted in the error state.
    #[cold]
    pub(super) fn flush_send(&self, wr_id: u64, opcode: WrOpcode) {
        self.complete_send(wr_id, opcode, SendFlags::SIGNALED, WcStatus::WR_FLUSH_ERR);
    }

    // --- Errors ------------------------------------------------------------------------------------------------------

    /// Goes to the error state: nothing of the peer is executed any more, what is posted is flushed by later polls.
    #[cold]
    pub(crate) fn enter_error(&self) {
        if self.state.swap(QpState::Err as u32, Ordering::AcqRel) != QpState::Err as u32 {
            self.stats.record(Event::State as u64, QpState::Err as u64);
            self.close();
            self.announce_locally(true);
        }
    }

    /// Goes to the send queue error state: sends are flushed, receives go on (IBA 10.3.1, all transports but RC).
    #[cold]
    pub(super) fn enter_send_error(&self) {
        let (from, to) = (QpState::Rts as u32, QpState::Sqe as u32);
        if self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.stats.record(Event::State as u64, to.into());
        }
    }

    /// Revokes what the peer was granted through this pair.
    pub(super) fn close(&self) {
        self.lock_inbound().way.mem.store(ACCEPT, 0, Ordering::Release);
        fence::heavy();
        // What the service thread does for the peer ends before it lets us in; later it finds the pair closed.
        self.process.access_turn.wait();
    }

    pub(super) fn open(&self, accept: Accept) {
        self.lock_inbound().way.mem.store(ACCEPT, accept.word(), Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        Accept::from_word(self.lock_inbound().way.mem.load(ACCEPT, Ordering::Relaxed)).is_open()
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind) {
        self.process.raise(AsyncEvent { kind, element: self.qpn });
    }

    /// After `close`: whether no access of the peer is left.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.lock_inbound().way.is_clear(|hazard| hazard != 0)
    }

    /// After `close`, before the way in is given up: waits for the peer to leave. A peer that is stopped in there is
    /// remembered, for those who take memory back later. Returns whether there is none.
    pub(super) fn wait_quiesced(&self) -> bool {
        let quiesced = wait_until(Instant::now() + HAZARD_WAIT, || self.is_quiesced());
        if !quiesced {
            self.process.remember_stopped(self.lock_inbound().way.clone());
        }
        quiesced
    }

    /// After the region was revoked: waits for the peer to leave it.
    pub(crate) fn wait_out_of_region(&self, rkey: u32, granted: Granted, deadline: Instant) -> bool {
        wait_until(deadline, || self.lock_inbound().way.is_clear(|hazard| is_inside(hazard, rkey, granted)))
    }

    // --- Connecting --------------------------------------------------------------------------------------------------

    /// How often the pair was reset.
    pub(super) fn life(&self) -> u32 {
        self.lock_inbound().life
    }

    /// Grants the way in to the peer's queue pair, once: a ring has one producer, which begins at its beginning.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn grant_inbound<R>(
        &self,
        asker: Asker,
        transport: Connected,
        client: u64,
        life: impl FnOnce() -> Option<OwnedFd>,
        send: impl FnOnce(ReplyBody, &[BorrowedFd<'_>]) -> R,
    ) -> Result<R, u32> {
        let mut inbound = self.lock_inbound();
        if !self.state().responds() {
            return Err(refusal::NOT_READY);
        }
        if self.transport != transport {
            return Err(refusal::TRANSPORT);
        }
        if self.dest_qpn() != asker.1 || inbound.granted_to.is_some_and(|granted| granted != asker) {
            return Err(refusal::TAKEN);
        }
        inbound.granted_to = Some(asker);
        inbound.client = Some(client);
        if inbound.way.peer.is_none() {
            inbound.way.initiator = life().map(Arc::new);
        }
        let (recv, send_cq) = (&self.recv_place, &self.send_place);
        let mut fds = vec![inbound.segment.fd(), recv.cq.segment_fd(), send_cq.cq.segment_fd()];
        let wakers = (recv.cq.waker_fd(), send_cq.cq.waker_fd());
        fds.extend(wakers.0);
        fds.extend(wakers.1);
        let body = ReplyBody::Connect {
            pd: self.pd,
            recv_bit: recv.bit,
            send_bit: send_cq.bit,
            recv_event: wakers.0.is_some(),
            send_event: wakers.1.is_some(),
        };
        Ok(send(body, &fds))
    }

    /// Whether nobody but `client` has the way in.
    pub(crate) fn is_granted_to(&self, client: u64) -> bool {
        self.lock_inbound().client.is_none_or(|granted| granted == client)
    }

    /// What is accepted from the peer that asks as `client` in its `life`.
    ///
    /// # Errors
    /// The reason of refusal.
    pub(crate) fn accepts_from(&self, client: u64, life: u32) -> Result<Accept, u32> {
        let inbound = self.lock_inbound();
        if inbound.client != Some(client) || inbound.granted_to.is_none_or(|asker| asker.2 != life) {
            return Err(refusal::TAKEN);
        }
        let accept = Accept::from_word(inbound.way.mem.load(ACCEPT, Ordering::Acquire));
        if accept.is_open() { Ok(accept) } else { Err(refusal::NOT_READY) }
    }

    /// Tells the receive side and the revocation whose life they depend on.
    pub(super) fn connected(&self, peer: &Arc<Peer>, doorbells: &Arc<Doorbells>) {
        {
            let mut inbound = self.lock_inbound();
            inbound.way.peer = Some(peer.clone());
            inbound.way.initiator = None;
            inbound.doorbells = Some(doorbells.clone());
        }
        // SAFETY: visits come from the owner of the queue pair, or from a visitor of its send side under that lock.
        unsafe { self.recv.visit(|recv| recv.connected(peer.clone(), doorbells.clone())) };
        peer.attach(self.this.clone());
    }

    /// Begins a new life: new inbound segment, new queues. The peer's mapping of the old segment leads nowhere.
    pub(super) fn renew(&self) -> Result<(Arc<RecvQueue>, SharedMem)> {
        let fresh = Inbound::create(&self.layout, self.life().wrapping_add(1))?;
        let queue = Arc::new(RecvQueue::new(&self.layout));
        let consumer = Consumer::new(fresh.way.mem.clone(), &self.layout);
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.recv.visit(|recv| *recv = RecvSide::new(consumer, queue.clone())) };
        let mem = fresh.way.mem.clone();
        *self.lock_inbound() = fresh;
        Ok((queue, mem))
    }

    /// Leaves the completion queues. Afterwards no poll is inside our receives.
    pub(super) fn detach(&self) {
        self.send_place.cq.detach(self.send_place.bit);
        if !Arc::ptr_eq(&self.send_place.cq, &self.recv_place.cq) {
            self.recv_place.cq.detach(self.recv_place.bit);
        }
        // A poll that began before may still come in by its own copy of the list: it must find nothing to do.
        // SAFETY: called by the owner of the queue pair.
        unsafe { self.send.owner() }.discard(self);
        // SAFETY: as above; visits wait for the resident.
        unsafe { self.recv.visit(RecvSide::end) };
    }
}
