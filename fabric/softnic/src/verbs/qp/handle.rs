//! The program's handle of a connected queue pair.

use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use farcall_shm::ring::RQ_POSTED;
use farcall_shm::{SharedMem, credit_request};
use farcall_verbs::{
    Access, Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp, RecvRules, RecvWr,
    Result, SendWr,
};

use crate::roce::RoceQp;
use crate::shm_transport::events::Events;
use crate::shm_transport::qp::{
    Connected, MAX_INLINE_BYTES, MAX_SGE, MAX_WR, QueuePair, RecvQueue, SharedRecvSource, USUAL_INLINE_BYTES,
};
use crate::shm_transport::state::StateEvent;
use crate::shm_transport::{CqSlot, ObjectKind, ObjectReservation, ShmTransport};
use crate::verbs::limits::qp_max;
use crate::verbs::mr::Mr;
use crate::verbs::resources_of;

/// Connected queue pair, on one cache line.
#[repr(align(64))]
pub(crate) struct Qp {
    pub(super) pair: Arc<QueuePair>,
    pub(super) recv_queue: Arc<RecvQueue>,
    pub(super) inbound: SharedMem,
    pub(super) access: Access,
    /// ACK timeout code, and number of retries.
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    /// RoCEv2 queue pair, while the peer is on another host.
    pub(super) remote: Option<RoceQp>,
    _reservation: ObjectReservation,
}

impl Qp {
    pub(crate) fn create(
        shm: &Arc<ShmTransport>,
        events: &Arc<Events>,
        pd: u32,
        attr: &QpInitAttr<'_>,
    ) -> Result<Self> {
        const OP: &str = "create_qp";
        let Some(transport) = Connected::of(attr.qp_type) else {
            let what = format!("transport {:?}; use RC, UC or UD", attr.qp_type);
            return Err(Error::Unsupported { operation: OP, provider: crate::NAME, what });
        };
        if attr.srq.is_some() && transport != Connected::Reliable {
            let what = "shared receive queues over UC".into();
            return Err(Error::Unsupported { operation: OP, provider: crate::NAME, what });
        }
        let reservation = ObjectReservation::new(&shm.object_counts, ObjectKind::QueuePair, OP, qp_max())?;
        let mut receives = None;
        let pair = shm.register_qp(|qpn| {
            let parts = resources_of(shm, events, pd, attr)?;
            let (send, recv) = (parts.send_slot.clone(), parts.recv_slot.clone());
            let made = QueuePair::new(qpn, transport, parts, shm);
            let (pair, queue, inbound) = made.inspect_err(|_| CqSlot::release(&send, &recv))?;
            attach(&pair);
            receives = Some((queue, inbound));
            Ok(pair)
        })?;
        let (recv_queue, inbound) = receives.expect("made together with the pair");
        Ok(Self {
            pair,
            recv_queue,
            inbound,
            access: Access::empty(),
            timeout: 0,
            retry_cnt: 0,
            remote: None,
            _reservation: reservation,
        })
    }

    /// Returns the reason for which nothing was posted. That the queue pair belongs to another process takes
    /// precedence.
    #[cold]
    fn refuse(&self, operation: &'static str, source: Error) -> PostError {
        let inherited = self.pair.shm.process.require_here(operation).err();
        PostError::new(0, inherited.unwrap_or(source))
    }

    /// Posts a single one-sided request that is covered by earlier grants. Otherwise returns `false` and does nothing.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    #[inline]
    unsafe fn post_repeated(&mut self, wr: &SendWr<'_>) -> bool {
        let pair = &*self.pair;
        if pair.send.has_pending() {
            return false;
        }
        // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
        // `PendingLock::owner` requires.
        let mut send = unsafe { pair.send.owner() };
        let Some(initiator) = send.connection.initiator_mut() else { return false };
        // SAFETY: by the contract of this function the request's memory is valid; no request waits, as checked above.
        unsafe { initiator.post_repeated(pair, wr) }
    }

    /// Posts requests in order and announces them once.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    #[inline(never)]
    unsafe fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let pair = &*self.pair;
        pair.state().check_sends(pair.qpn).map_err(|source| self.refuse("post_send", source))?;
        // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
        // `PendingLock::owner` requires.
        let mut send = unsafe { pair.send.owner() };
        // SAFETY: by the contract of this function the requests' memory is valid, as `SendSide::post_batch` requires.
        let result = unsafe { send.post_batch(pair, wrs) };
        let waits = send.waiting() > 0;
        drop(send);
        if waits {
            pair.after_leaving_sends();
        }
        result
    }
}

/// Attaches a queue pair to its completion queues.
pub(super) fn attach(pair: &Arc<QueuePair>) {
    let (send, recv) = (&pair.send_slot, &pair.recv_slot);
    let one_cq = send.is_same(recv);
    let put = |slot: &CqSlot, sends: bool, receives: bool| {
        if pair.shares_receives {
            slot.cq.attach_source(slot.bit, SharedRecvSource::new(pair, sends, receives));
        } else {
            slot.cq.attach(slot.bit, pair.clone(), sends, receives);
        }
    };
    put(send, true, one_cq);
    if !one_cq {
        put(recv, false, true);
    }
}

/// Checks the requested sizes and returns the actual ones.
pub(crate) fn checked_cap(cap: &QpCap) -> Result<QpCap> {
    const OP: &str = "create_qp";
    let within = |value: u32, limit: u32, name: &str| {
        if value <= limit {
            Ok(())
        } else {
            Err(Error::invalid(OP, format!("{name} {value}; the device has {limit}")))
        }
    };
    within(cap.max_send_wr, MAX_WR, "max_send_wr")?;
    within(cap.max_recv_wr, MAX_WR, "max_recv_wr")?;
    within(cap.max_send_sge, MAX_SGE as u32, "max_send_sge")?;
    within(cap.max_recv_sge, MAX_SGE as u32, "max_recv_sge")?;
    within(cap.max_inline_data, MAX_INLINE_BYTES, "max_inline_data")?;
    Ok(QpCap {
        max_send_wr: cap.max_send_wr.max(1).next_power_of_two(),
        max_recv_wr: cap.max_recv_wr.max(1).next_power_of_two(),
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: cap.max_recv_sge.max(1),
        max_inline_data: cap.max_inline_data.max(USUAL_INLINE_BYTES),
    })
}

impl RawQp for Qp {
    fn qp_num(&self) -> u32 {
        self.pair.qpn
    }

    fn qp_type(&self) -> QpType {
        self.pair.transport.qp_type()
    }

    fn state(&self) -> QpState {
        if let Some(remote) = &self.remote {
            return remote.state();
        }
        self.pair.check_violation();
        self.pair.state()
    }

    fn cap(&self) -> QpCap {
        self.pair.cap
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.modify_to(attr)
    }

    #[inline]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if let [wr] = wrs
            // SAFETY: by the contract of this function the request's memory is valid, as `post_repeated` requires.
            && unsafe { self.post_repeated(wr) }
        {
            return Ok(());
        }
        if let Some(remote) = &self.remote {
            // SAFETY: the contract of this function is that of `RoceQp::post_send`.
            return unsafe { remote.post_send(wrs) };
        }
        // SAFETY: by the contract of this function the requests' memory is valid, as `post_batch` requires.
        unsafe { self.post_batch(wrs) }
    }

    unsafe fn check_sends(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if let Some(remote) = &self.remote {
            return remote.check_sends(wrs);
        }
        let pair = &*self.pair;
        pair.state().check_sends(pair.qpn).map_err(|source| self.refuse("post_send", source))?;
        // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
        // `PendingLock::owner` requires.
        let mut send = unsafe { pair.send.owner() };
        if send.waiting() > 0 {
            send.resume(pair);
        }
        let (rules, queued) = (pair.send_rules(), pair.unpolled() + send.waiting());
        PostError::in_order(wrs, |posted, wr| rules.check(wr, queued + posted).map(drop))
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if let Some(remote) = &self.remote {
            return remote.post_recv(wrs);
        }
        let state = self.pair.state();
        state.check_receives(self.pair.qpn).map_err(|source| self.refuse("post_recv", source))?;
        let cap = &self.pair.cap;
        // A queue pair with shared receives has no capacity for its own.
        let rules = RecvRules::of_pair(cap, cap.max_recv_wr == 0);
        let result = PostError::in_order(wrs, |_, wr| {
            rules.check(wr, !self.recv_queue.is_full())?;
            let seq = self.recv_queue.next_seq();
            self.pair.layout.write_advert(&self.inbound, seq, wr.sges());
            // Elements that are not permitted fail the message that consumes them (IBA 11.6.2).
            let must_check = !self.pair.allows(wr.sges(), Access::LOCAL_WRITE);
            if must_check {
                self.pair.require_checks(seq + 1);
            }
            // SAFETY: `&mut self` makes this the only producer. `check` found the queue not full and the list not too
            // long.
            let new_keys = unsafe { self.recv_queue.push(wr.wr_id, wr.sges(), must_check) };
            if new_keys != 0 {
                self.pair.registry.note_receive_keys(new_keys);
            }
            Ok(())
        });
        self.inbound.store(RQ_POSTED, self.recv_queue.next_seq(), Release);
        if credit_request::is_credit_requested(&self.inbound) {
            self.pair.notify_credit();
        }
        if self.pair.state() == QpState::Err {
            self.pair.announce_locally(true);
        }
        result
    }

    fn places_in_order(&self, mr: &dyn RawMr) -> bool {
        mr.as_any().is::<Mr>()
    }

    fn is_quiesced(&self) -> bool {
        let pair = &*self.pair;
        if let Some(remote) = &self.remote {
            return matches!(remote.state(), QpState::Reset | QpState::Init | QpState::Err);
        }
        pair.is_closed() && pair.is_quiesced() && pair.shm.suspended.has_no_access_of(pair.qpn)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.pair.shm.process.is_inherited() {
            return;
        }
        if let Some(remote) = self.remote.take() {
            remote.close();
        }
        self.pair.apply_event(StateEvent::BeginReset);
        self.pair.close();
        self.pair.record_suspended_access();
        self.pair.detach();
        self.pair.registry.unregister_qp(self.pair.qpn);
    }
}
