//! The owner's handle of a datagram queue pair.

use std::collections::VecDeque;
use std::sync::Arc;

use farcall_verbs::{
    Access, AsyncEventKind, Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp,
    RecvWr, Result, SendFlags, SendWr, WcStatus, WrOpcode,
};

use super::core::Parts;
use super::drained::{Destination, Drained, Request};
use super::{DatagramCore, MAX_DATAGRAM_BYTES, Message, Routes, SoftAddressHandle};
use crate::events::Events;
use crate::process::Process;
use crate::qp::{Place, RecvQueue, checked_cap, unknown_flags};
use crate::ring::{SOLICITED, WITH_IMM};
use crate::srq::Srq;

/// A Q_Key with this bit stands for the sender's own (IBA 10.2.5: controlled Q_Keys).
const OWN_QKEY: u32 = 1 << 31;

pub(crate) struct DatagramQp {
    core: Arc<DatagramCore>,
    recv_queue: Arc<RecvQueue>,
    routes: Routes,
    qkey: u32,
    /// Posted in SQD.
    drained: VecDeque<Drained>,
}

fn required<T>(value: Option<T>, name: &'static str, to: QpState) -> Result<T> {
    value.ok_or_else(|| Error::invalid("modify_qp", format!("the transition to {to} needs {name}")))
}

impl DatagramQp {
    pub(crate) fn create(
        process: &Arc<Process>,
        events: &Arc<Events>,
        pd: u32,
        attr: &QpInitAttr<'_>,
    ) -> Result<Self> {
        let srq = attr.srq.map(Srq::core_of).transpose()?;
        let mut cap = checked_cap(&attr.cap)?;
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let mut receives = None;
        let core = process.register_datagrams(|qpn| {
            let (send, recv) = Place::reserve(attr)?;
            let parts = Parts {
                process: process.clone(),
                pd,
                cap,
                srq: srq.clone(),
                events: events.clone(),
                signal_all: attr.sq_sig_all,
                send_place: send.clone(),
                recv_place: recv.clone(),
            };
            let made = DatagramCore::new(qpn, parts);
            let (core, queue) = made.inspect_err(|_| Place::release(&send, &recv))?;
            core.attach();
            receives = Some(queue);
            Ok(core)
        })?;
        let recv_queue = receives.expect("made together with the core");
        Ok(Self { core, recv_queue, routes: Routes::default(), qkey: 0, drained: VecDeque::new() })
    }

    // --- States (IBA table 91, rows of UD) ---------------------------------------------------------------------------

    fn enter(&mut self, to: QpState, attr: &QpAttr) -> Result<()> {
        match to {
            QpState::Reset => self.reset(),
            QpState::Init => {
                let is_fresh = self.core.state() == QpState::Reset;
                let port = if is_fresh {
                    required(attr.port_num, "port_num", to)?
                } else {
                    attr.port_num.unwrap_or(1)
                };
                if port != 1 {
                    let what = format!("port {port}: this device has port 1 only");
                    return Err(Error::invalid("modify_qp", what));
                }
                if is_fresh {
                    required(attr.pkey_index, "pkey_index", to)?;
                    required(attr.qkey, "qkey", to)?;
                }
                self.qkey = attr.qkey.unwrap_or(self.qkey);
                self.core.set_state(to);
            }
            QpState::Rtr | QpState::Rts => {
                if self.core.state() == QpState::Rtr && to == QpState::Rts {
                    required(attr.sq_psn, "sq_psn", to)?;
                }
                self.qkey = attr.qkey.unwrap_or(self.qkey);
                let was_draining = self.core.state() == QpState::Sqd;
                self.core.set_state(to);
                self.core.board.open(self.qkey);
                if was_draining {
                    self.end_drain();
                }
            }
            QpState::Err => {
                let was_error = self.core.state() == to;
                self.core.set_state(to);
                self.core.close();
                self.core.flush_sends();
                self.end_drain();
                self.core.announce_flush();
                if self.core.shares_receives() && !was_error {
                    // None of the shared receives is ours any more.
                    self.core.raise(AsyncEventKind::QpLastWqeReached);
                }
            }
            QpState::Sqd => {
                self.qkey = attr.qkey.unwrap_or(self.qkey);
                self.core.set_state(to);
                self.core.tell_drained(attr.en_sqd_async_notify == Some(true));
            }
            QpState::Sqe => return Err(Error::invalid("modify_qp", "SQE is where failed sends lead")),
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.core.set_state(QpState::Reset);
        self.core.close();
        self.core.tell_drained(false);
        self.core.forget_sends();
        self.drained.clear();
        self.routes.clear();
        self.recv_queue = self.core.renew();
    }

    // --- Sends -------------------------------------------------------------------------------------------------------

    /// Requests that have a place in the send queue.
    fn queued(&self) -> usize {
        self.core.unpolled() + self.drained.len()
    }

    /// Checks a request against the queue's sizes; returns its length in bytes.
    fn check_send(&self, wr: &SendWr<'_>, queued: usize) -> Result<u64> {
        const OP: &str = "post_send";
        let (cap, len_bytes) = (self.core.cap(), wr.len_bytes());
        if queued >= cap.max_send_wr as usize {
            return Err(Error::Exhausted {
                operation: OP,
                what: "places in the send queue",
                limit: cap.max_send_wr.into(),
                remedy: "poll the completion queue, or create the queue pair with a larger max_send_wr",
            });
        }
        if wr.send_flags.bits() > SendFlags::all().bits() {
            return Err(unknown_flags(wr));
        }
        if !matches!(wr.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM) {
            let what = format!("opcode {} over UD; it has SEND and SEND with immediate", wr.opcode.0);
            return Err(Error::Unsupported { operation: OP, provider: crate::NAME, what });
        }
        if wr.sges().len() > cap.max_send_sge as usize {
            let what = format!("{} elements; max_send_sge is {}", wr.sges().len(), cap.max_send_sge);
            return Err(Error::invalid(OP, what));
        }
        if wr.send_flags.contains(SendFlags::INLINE) && len_bytes > cap.max_inline_data.into() {
            let what = format!("{len_bytes} inline bytes; max_inline_data is {}", cap.max_inline_data);
            return Err(Error::invalid(OP, what));
        }
        Ok(len_bytes)
    }

    /// Where a request goes.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn destination(&self, wr: &SendWr<'_>) -> Result<Destination> {
        let to = wr.ud();
        // SAFETY: the caller's promise.
        let Some(path) = (unsafe { SoftAddressHandle::from_raw(to.ah, self.core.pd()) }) else {
            return Err(Error::invalid("post_send", "no address handle of the queue pair's domain"));
        };
        let qkey = if to.remote_qkey & OWN_QKEY == 0 { to.remote_qkey } else { self.qkey };
        Ok(Destination { qpn: to.remote_qpn, qkey, sl: path.sl() })
    }

    /// Takes one checked request, as the state says.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn take(&mut self, wr: &SendWr<'_>, len_bytes: u64) -> Result<()> {
        let state = self.core.state();
        if !matches!(state, QpState::Rts | QpState::Sqd) {
            self.core.complete_send(wr.wr_id, SendFlags::SIGNALED, WcStatus::WR_FLUSH_ERR);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let request = Request::new(wr, unsafe { self.destination(wr) }?, len_bytes);
        if state == QpState::Rts {
            // SAFETY: the caller's promise.
            unsafe { self.send(&request) };
        } else {
            // SAFETY: the caller's promise.
            self.drained.push_back(unsafe { Drained::new(&request) });
        }
        Ok(())
    }

    /// Sends one checked datagram.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn send(&mut self, request: &Request<'_>) {
        let core = &*self.core;
        let inline = request.flags.contains(SendFlags::INLINE);
        // As RNICs do. The specification would have it dropped without an error (C10-93.1.1), which helps nobody.
        if request.len_bytes > MAX_DATAGRAM_BYTES as u64 {
            return self.fail(request.wr_id, WcStatus::LOC_LEN_ERR);
        }
        if !inline && !core.allows(request.sges, Access::empty()) {
            return self.fail(request.wr_id, WcStatus::LOC_PROT_ERR);
        }
        let has_imm = request.opcode == WrOpcode::SEND_WITH_IMM;
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        let to = request.to;
        let message = Message {
            sges: request.sges,
            len_bytes: request.len_bytes as usize,
            flags: (u8::from(has_imm) * WITH_IMM) | (u8::from(solicited) * SOLICITED) | (to.sl << 4),
            imm_be: request.imm_be,
            qkey: to.qkey,
        };
        // SAFETY: the caller's promise.
        match unsafe { self.routes.send(core, to.qpn, &message) } {
            None => core.complete_send(request.wr_id, request.flags, WcStatus::SUCCESS),
            Some(wait) => core.hold_send(request.wr_id, request.flags, wait),
        }
    }

    /// Back in RTS: what waited goes on, in its order.
    fn end_drain(&mut self) {
        self.core.tell_drained(false);
        while let Some(next) = self.drained.pop_front() {
            if self.core.state() == QpState::Rts {
                // SAFETY: the poster's promise, which lasts until the completion.
                unsafe { self.send(&next.request()) };
            } else {
                self.core.complete_send(next.request().wr_id, SendFlags::SIGNALED, WcStatus::WR_FLUSH_ERR);
            }
        }
        self.routes.ring();
    }

    /// A fault of our own stops the send queue (IBA 10.3.1).
    #[cold]
    fn fail(&self, wr_id: u64, status: WcStatus) {
        self.core.complete_send(wr_id, SendFlags::SIGNALED, status);
        self.core.set_state(QpState::Sqe);
    }

    // --- Receives ----------------------------------------------------------------------------------------------------

    fn check_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        const OP: &str = "post_recv";
        let cap = self.core.cap();
        if self.recv_queue.is_full() {
            return Err(Error::Exhausted {
                operation: OP,
                what: "places in the receive queue",
                limit: cap.max_recv_wr.into(),
                remedy: "poll the completion queue, or create the queue pair with a larger max_recv_wr",
            });
        }
        if wr.sges().len() > cap.max_recv_sge as usize {
            let what = format!("{} elements; max_recv_sge is {}", wr.sges().len(), cap.max_recv_sge);
            return Err(Error::invalid(OP, what));
        }
        if !self.core.allows(wr.sges(), Access::LOCAL_WRITE) {
            let what = "an element's lkey, bounds or LOCAL_WRITE permission do not allow it";
            return Err(Error::invalid(OP, what));
        }
        Ok(())
    }

    #[cold]
    fn wrong_state(&self, operation: &'static str, remedy: &'static str) -> Error {
        if let Err(error) = self.core.process().require_here(operation) {
            return error;
        }
        let (object, state) = (format!("queue pair {:#x}", self.core.qpn()), self.core.state().to_string());
        Error::InvalidState { operation, object, state, remedy }
    }
}

impl RawQp for DatagramQp {
    fn qp_num(&self) -> u32 {
        self.core.qpn()
    }

    fn qp_type(&self) -> QpType {
        QpType::Ud
    }

    fn state(&self) -> QpState {
        self.core.state()
    }

    fn cap(&self) -> QpCap {
        *self.core.cap()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.core.process().require_here("modify_qp")?;
        let from = self.core.state();
        let to = attr.state.unwrap_or(from);
        if !from.may_become(to) {
            return Err(self.wrong_state(
                "modify_qp",
                "follow RESET → INIT → RTR → RTS; RESET and ERR are always allowed",
            ));
        }
        self.enter(to, attr)
    }

    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if !self.core.state().accepts_sends() {
            let source = self.wrong_state("post_send", "bring the queue pair to RTS first");
            return Err(PostError { posted: 0, source });
        }
        self.core.release_sends();
        let mut result = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            let sent = match self.check_send(wr, self.queued()) {
                // SAFETY: the caller's promise.
                Ok(len_bytes) => unsafe { self.take(wr, len_bytes) },
                Err(error) => Err(error),
            };
            if let Err(source) = sent {
                result = Err(PostError { posted, source });
                break;
            }
        }
        self.routes.ring();
        result
    }

    unsafe fn check_sends(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let state = self.core.state();
        if !state.accepts_sends() {
            let source = self.wrong_state("post_send", "bring the queue pair to RTS first");
            return Err(PostError { posted: 0, source });
        }
        self.core.release_sends();
        let queued = self.queued();
        for (posted, wr) in wrs.iter().enumerate() {
            let mut checked = self.check_send(wr, queued + posted).map(drop);
            // What is flushed goes nowhere.
            if checked.is_ok() && matches!(state, QpState::Rts | QpState::Sqd) {
                // SAFETY: the caller's promise.
                checked = unsafe { self.destination(wr) }.map(drop);
            }
            checked.map_err(|source| PostError { posted, source })?;
        }
        Ok(())
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if !self.core.state().accepts_receives() {
            let source = self.wrong_state("post_recv", "bring the queue pair to INIT first");
            return Err(PostError { posted: 0, source });
        }
        if self.core.shares_receives() {
            let what = "the queue pair takes its receives from a shared receive queue: post them there";
            return Err(PostError { posted: 0, source: Error::invalid("post_recv", what) });
        }
        let mut result = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            if let Err(source) = self.check_recv(wr) {
                result = Err(PostError { posted, source });
                break;
            }
            // SAFETY: `&mut self`; checked that it is not full and the list not too long.
            unsafe { self.recv_queue.push(wr.wr_id, wr.sges()) };
        }
        self.core.tell_receives(self.recv_queue.next_seq());
        if self.core.state() == QpState::Err {
            self.core.announce_flush();
        }
        result
    }

    fn places_in_order(&self, _mr: &dyn RawMr) -> bool {
        false
    }

    fn is_quiesced(&self) -> bool {
        // Senders never touch our memory.
        true
    }
}

impl Drop for DatagramQp {
    fn drop(&mut self) {
        if self.core.process().is_inherited() {
            return;
        }
        self.core.linger();
        self.core.set_state(QpState::Reset);
        self.core.close();
        self.core.board.end();
        self.core.detach();
        self.core.process().unregister_qp(self.core.qpn());
    }
}
