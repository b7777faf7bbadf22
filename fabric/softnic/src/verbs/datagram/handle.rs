//! The program's handle of a datagram queue pair.

use std::collections::VecDeque;
use std::sync::Arc;

use farcall_shm::ring::{SOLICITED, WITH_IMM};
use farcall_verbs::{
    Access, AsyncEventKind, Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp,
    RecvRules, RecvWr, Result, SendFlags, SendRules, SendWr, WcStatus, WrOpcode,
};

use super::deferred_send::{CheckedRequest, DeferredSend, Destination};
use super::{AddressRoute, SoftAddressHandle};
use crate::roce::{self, Datagram, Path, RoceDatagrams};
use crate::shm_transport::datagram::{DatagramCore, Message, Routes, SendOutcome};
use crate::shm_transport::events::Events;
use crate::shm_transport::qp::RecvQueue;
use crate::shm_transport::state::StateEvent;
use crate::shm_transport::{CqSlot, ObjectKind, ObjectReservation, ShmTransport};
use crate::verbs::limits::qp_max;
use crate::verbs::{PORT, require_port, resources_of};

/// If this bit is set in a request's Q_Key, the Q_Key of the queue pair is used instead (IBA 10.2.5: controlled
/// Q_Keys).
const OWN_QKEY: u32 = 1 << 31;

pub(crate) struct DatagramQp {
    shm: Arc<ShmTransport>,
    core: Arc<DatagramCore>,
    recv_queue: Arc<RecvQueue>,
    routes: Routes,
    /// RoCEv2 datagrams; opened at the first send to another host.
    remote: Option<RoceDatagrams>,
    send_rules: SendRules,
    recv_rules: RecvRules,
    qkey: u32,
    /// Requests posted in SQD.
    deferred: VecDeque<DeferredSend>,
    _reservation: ObjectReservation,
}

impl DatagramQp {
    pub(crate) fn create(
        shm: &Arc<ShmTransport>,
        events: &Arc<Events>,
        pd: u32,
        attr: &QpInitAttr<'_>,
    ) -> Result<Self> {
        let reservation =
            ObjectReservation::new(&shm.object_counts, ObjectKind::QueuePair, "create_qp", qp_max())?;
        let mut receives = None;
        let core = shm.register_datagrams(|qpn| {
            let parts = resources_of(shm, events, pd, attr)?;
            let (send, recv) = (parts.send_slot.clone(), parts.recv_slot.clone());
            let made = DatagramCore::new(qpn, parts);
            let (core, queue) = made.inspect_err(|_| CqSlot::release(&send, &recv))?;
            core.attach();
            receives = Some(queue);
            Ok(core)
        })?;
        let recv_queue = receives.expect("made together with the core");
        let send_rules = SendRules::new(crate::NAME, QpType::Ud, &core.cap);
        let recv_rules = RecvRules::of_pair(&core.cap, core.shares_receives());
        let (routes, deferred) = (Routes::default(), VecDeque::new());
        Ok(Self {
            shm: shm.clone(),
            core,
            recv_queue,
            routes,
            remote: None,
            send_rules,
            recv_rules,
            qkey: 0,
            deferred,
            _reservation: reservation,
        })
    }

    // --- States ------------------------------------------------------------------------------------------------------

    fn enter(&mut self, to: QpState, attr: &QpAttr) -> Result<()> {
        require_port("modify_qp", attr.port_num.unwrap_or(PORT))?;
        let from = self.core.state();
        if to == QpState::Rtr {
            roce::listen(&self.shm, self.core.qpn);
        }
        self.qkey = attr.qkey.unwrap_or(self.qkey);
        if to == QpState::Reset {
            self.reset();
            return Ok(());
        }
        self.core.apply_event(StateEvent::Modify(to));
        match to {
            QpState::Rtr | QpState::Rts => {
                self.core.status.open(self.qkey);
                if from == QpState::Sqd {
                    self.end_drain();
                }
            }
            QpState::Err => self.enter_error(from),
            QpState::Sqd => self.core.request_drained_event(attr.en_sqd_async_notify == Some(true)),
            _ => {}
        }
        Ok(())
    }

    fn enter_error(&mut self, from: QpState) {
        self.close();
        self.core.apply_event(StateEvent::PeerAccessRevoked);
        self.core.flush_sends();
        self.end_drain();
        self.core.announce_flush();
        if self.core.shares_receives() && from != QpState::Err {
            // The queue pair holds no shared receive any more.
            self.core.raise(AsyncEventKind::QpLastWqeReached);
        }
    }

    fn reset(&mut self) {
        self.core.apply_event(StateEvent::BeginReset);
        self.close();
        self.core.request_drained_event(false);
        self.core.discard_sends();
        self.deferred.clear();
        self.routes.clear();
        self.recv_queue = self.core.renew();
        self.core.apply_event(StateEvent::EndReset);
    }

    /// Stops accepting datagrams, and discards those that were received but not delivered.
    fn close(&self) {
        self.core.close();
        roce::discard(&self.shm, self.core.qpn);
    }

    // --- Sends -------------------------------------------------------------------------------------------------------

    /// Returns the number of occupied send queue entries.
    fn queued(&self) -> usize {
        self.core.unpolled() + self.deferred.len()
    }

    /// Returns the destination of a request.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn destination(&self, wr: &SendWr<'_>) -> Result<Destination> {
        let to = wr.ud();
        // SAFETY: by the contract of this function the address handle is null or one of this provider that exists.
        let Some(path) = (unsafe { SoftAddressHandle::from_raw(to.ah, self.core.pd) }) else {
            return Err(Error::invalid("post_send", "no address handle of the queue pair's domain"));
        };
        let qkey = if to.remote_qkey & OWN_QKEY == 0 { to.remote_qkey } else { self.qkey };
        Ok(Destination { qpn: to.remote_qpn, qkey, sl: path.sl, route: path.route })
    }

    /// Checks a request by the rules for datagrams. An operation that datagrams do not have passes; it fails when it is
    /// executed.
    fn check_send(&self, wr: &SendWr<'_>, queued: usize) -> Result<u64> {
        if wr.opcode.is_one_sided() {
            let mut send = *wr;
            send.opcode = WrOpcode::SEND;
            return self.send_rules.check(&send, queued);
        }
        self.send_rules.check(wr, queued)
    }

    /// Handles one checked request according to the state.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn accept_send(&mut self, wr: &SendWr<'_>, len_bytes: u64) -> Result<()> {
        let state = self.core.state();
        if !matches!(state, QpState::Rts | QpState::Sqd) {
            self.core.complete_send(wr.wr_id, SendFlags::SIGNALED, WcStatus::WR_FLUSH_ERR);
            return Ok(());
        }
        let to = wr.ud();
        let is_send = matches!(wr.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM);
        let is_remote = || {
            // SAFETY: by the contract of this function the address handle of a SEND is null or one of this provider
            // that exists.
            !to.ah.is_null() && unsafe { SoftAddressHandle::from_raw(to.ah, self.core.pd) }.is_none()
        };
        if !is_send || is_remote() {
            // The operation is not one of datagrams, or the address handle belongs to another domain (C10-10).
            self.fail(wr.wr_id, WcStatus::LOC_QP_OP_ERR);
            return Ok(());
        }
        // SAFETY: by the contract of this function the request's address handle is valid, as `destination` requires.
        let request = CheckedRequest::new(wr, unsafe { self.destination(wr) }?, len_bytes);
        if state == QpState::Rts {
            // SAFETY: by the contract of this function the request's memory is valid, as `send` requires.
            unsafe { self.send(&request) };
        } else {
            // SAFETY: by the contract of this function inline elements are readable, as `DeferredSend::new` requires.
            self.deferred.push_back(unsafe { DeferredSend::new(&request) });
        }
        Ok(())
    }

    /// Sends one checked datagram.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn send(&mut self, request: &CheckedRequest<'_>) {
        let core = &*self.core;
        let inline = request.flags.contains(SendFlags::INLINE);
        // RNICs report this error. According to the specification the request is dropped without one (C10-93.1.1),
        // which would hide the fault from the program.
        if request.len_bytes > u64::from(core.shm.process.port_mtu().bytes()) {
            return self.fail(request.wr_id, WcStatus::LOC_LEN_ERR);
        }
        if !inline && !core.allows(request.sges, Access::empty()) {
            return self.fail(request.wr_id, WcStatus::LOC_PROT_ERR);
        }
        let has_imm = request.opcode == WrOpcode::SEND_WITH_IMM;
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        let to = request.to;
        let route = match to.route {
            AddressRoute::Local(route) => route,
            // SAFETY: by the contract of this function the request's memory is valid, as `send_remote` requires.
            AddressRoute::Remote(path) => return unsafe { self.send_remote(request, path) },
        };
        let message = Message {
            sges: request.sges,
            len_bytes: request.len_bytes as usize,
            flags: (u8::from(has_imm) * WITH_IMM) | (u8::from(solicited) * SOLICITED) | (to.sl << 4),
            route,
            imm_be: request.imm_be,
            qkey: to.qkey,
        };
        // SAFETY: by the contract of this function the elements are readable.
        match unsafe { self.routes.send(core, to.qpn, &message) } {
            None => core.complete_send(request.wr_id, request.flags, WcStatus::SUCCESS),
            Some(wait) => core.add_outstanding(request.wr_id, request.flags, wait),
        }
    }

    /// Sends one checked datagram to another host.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    #[cold]
    unsafe fn send_remote(&mut self, request: &CheckedRequest<'_>, path: Path) {
        let core = &*self.core;
        let remote = match &mut self.remote {
            Some(remote) => remote,
            // The port is open: creating the address handle has opened it.
            none => match RoceDatagrams::open(&self.shm, core.qpn) {
                Ok(remote) => none.insert(remote),
                Err(_) => return self.fail(request.wr_id, WcStatus::LOC_QP_OP_ERR),
            },
        };
        let datagram = Datagram {
            path,
            dest_qpn: request.to.qpn,
            qkey: request.to.qkey,
            imm_be: (request.opcode == WrOpcode::SEND_WITH_IMM).then_some(request.imm_be),
            is_solicited: request.flags.contains(SendFlags::SOLICITED),
            sges: request.sges,
            len_bytes: request.len_bytes as usize,
        };
        // SAFETY: by the contract of this function the elements are readable.
        unsafe { remote.send(&datagram) };
        core.stats.offered(SendOutcome::Sent, request.len_bytes);
        core.complete_send(request.wr_id, request.flags, WcStatus::SUCCESS);
    }

    /// Announces the datagrams sent since the last call to their destinations.
    #[inline]
    fn ring(&mut self) {
        self.routes.announce();
        if let Some(remote) = &mut self.remote {
            remote.flush();
        }
    }

    /// Called on the return to RTS: sends the requests posted in SQD, in order.
    fn end_drain(&mut self) {
        self.core.request_drained_event(false);
        while let Some(next) = self.deferred.pop_front() {
            if self.core.state() == QpState::Rts {
                // SAFETY: by the contract of `RawQp::post_send` the request's memory is valid until its completion is
                // polled.
                unsafe { self.send(&next.request()) };
            } else {
                self.core.complete_send(next.request().wr_id, SendFlags::SIGNALED, WcStatus::WR_FLUSH_ERR);
            }
        }
        self.ring();
    }

    /// A local fault stops the send queue (IBA 10.3.1).
    #[cold]
    fn fail(&self, wr_id: u64, status: WcStatus) {
        self.core.complete_send(wr_id, SendFlags::SIGNALED, status);
        self.core.apply_event(StateEvent::SendFailed);
    }

    // --- Receives ----------------------------------------------------------------------------------------------------

    /// Returns the reason for which nothing was posted. That the queue pair belongs to another process takes
    /// precedence.
    #[cold]
    fn refuse(&self, operation: &'static str, source: Error) -> PostError {
        let inherited = self.core.shm.process.require_here(operation).err();
        PostError::new(0, inherited.unwrap_or(source))
    }
}

impl RawQp for DatagramQp {
    fn qp_num(&self) -> u32 {
        self.core.qpn
    }

    fn qp_type(&self) -> QpType {
        QpType::Ud
    }

    fn state(&self) -> QpState {
        self.core.state()
    }

    fn cap(&self) -> QpCap {
        self.core.cap
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.core.shm.process.require_here("modify_qp")?;
        let to = attr.check_transition(QpType::Ud, self.core.qpn, self.core.state())?;
        self.enter(to, attr)
    }

    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let state = self.core.state();
        state.check_sends(self.core.qpn).map_err(|source| self.refuse("post_send", source))?;
        self.core.release_sends();
        let result = PostError::in_order(wrs, |_, wr| {
            let len_bytes = self.check_send(wr, self.queued())?;
            // SAFETY: the contract of `RawQp::post_send` (# Safety), which the caller of this function fulfils: memory
            // and address handle of `wr` stay valid until its completion is polled.
            unsafe { self.accept_send(wr, len_bytes) }
        });
        self.ring();
        result
    }

    unsafe fn check_sends(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let state = self.core.state();
        state.check_sends(self.core.qpn).map_err(|source| self.refuse("post_send", source))?;
        self.core.release_sends();
        let queued = self.queued();
        PostError::in_order(wrs, |posted, wr| {
            self.check_send(wr, queued + posted)?;
            let is_send = matches!(wr.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM);
            // Requests that are flushed need no destination.
            if matches!(state, QpState::Rts | QpState::Sqd) && is_send && wr.ud().ah.is_null() {
                return Err(Error::invalid("post_send", "no address handle"));
            }
            Ok(())
        })
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let state = self.core.state();
        state.check_receives(self.core.qpn).map_err(|source| self.refuse("post_recv", source))?;
        let result = PostError::in_order(wrs, |_, wr| {
            self.recv_rules.check(wr, !self.recv_queue.is_full())?;
            // SAFETY: `&mut self` makes this the only producer. `check` found the queue not full and the list not too
            // long.
            let _new_keys = unsafe { self.recv_queue.push(wr.wr_id, wr.sges(), true) };
            Ok(())
        });
        self.core.notify_receives(self.recv_queue.next_seq());
        if self.core.state() == QpState::Err {
            self.core.announce_flush();
        }
        result
    }

    fn places_in_order(&self, _mr: &dyn RawMr) -> bool {
        false
    }

    fn is_quiesced(&self) -> bool {
        // Senders never access this process's memory.
        true
    }
}

impl Drop for DatagramQp {
    fn drop(&mut self) {
        if self.core.shm.process.is_inherited() {
            return;
        }
        self.core.linger();
        self.core.apply_event(StateEvent::BeginReset);
        self.close();
        self.core.status.end();
        self.core.detach();
        self.shm.unregister_qp(self.core.qpn);
    }
}
