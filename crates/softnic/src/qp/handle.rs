//! The owner's handle of a queue pair.

use std::sync::Arc;

use farcall_verbs::{
    Access, Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp, RecvWr, Result,
    SendFlags, SendWr, WrOpcode,
};

use super::atomic::ATOMIC_BYTES;
use super::core::Parts;
use super::place::Place;
use super::receive::RecvQueue;
use super::shared_receive::Polled;
use super::{Connected, MAX_INLINE_BYTES, MAX_MESSAGE_BYTES, MAX_SGE, MAX_WR, QpCore};
use crate::credit;
use crate::events::Events;
use crate::mr::Mr;
use crate::process::Process;
use crate::ring::RQ_POSTED;
use crate::shared::SharedMem;
use crate::srq::Srq;
use crate::sync::atomic::Ordering::Release;

/// On one cache line.
#[repr(align(64))]
pub(crate) struct Qp {
    pub(super) core: Arc<QpCore>,
    pub(super) recv_queue: Arc<RecvQueue>,
    pub(super) inbound: SharedMem,
    pub(super) access: Access,
    /// Code of the ACK timeout, and how often it may run out.
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    /// See [`Connected::last_plain`].
    last_plain: WrOpcode,
}

impl Qp {
    pub(crate) fn create(
        process: &Arc<Process>,
        events: &Arc<Events>,
        pd: u32,
        attr: &QpInitAttr<'_>,
    ) -> Result<Self> {
        const OP: &str = "create_qp";
        let Some(transport) = Connected::of(attr.qp_type) else {
            let what = format!("transport {:?}; use RC, UC or UD", attr.qp_type);
            return Err(Error::Unsupported { operation: OP, provider: crate::NAME, what });
        };
        let srq = match attr.srq {
            None => None,
            Some(_) if transport != Connected::Reliable => {
                let what = "shared receive queues over UC".into();
                return Err(Error::Unsupported { operation: OP, provider: crate::NAME, what });
            }
            Some(srq) => Some(Srq::core_of(srq)?),
        };
        let mut cap = checked_cap(&attr.cap)?;
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let mut receives = None;
        let core = process.register_qp(|qpn| {
            let (send, recv) = Place::reserve(attr)?;
            let parts = Parts {
                process: process.clone(),
                events: events.clone(),
                pd,
                transport,
                cap,
                srq: srq.clone(),
                signal_all: attr.sq_sig_all,
                send_place: send.clone(),
                recv_place: recv.clone(),
            };
            let made = QpCore::new(qpn, parts);
            let (core, queue, inbound) = made.inspect_err(|_| Place::release(&send, &recv))?;
            let one_cq = send.is_same(&recv);
            let attach = |place: &Place, sends: bool, receives: bool| {
                if core.shares_receives() {
                    place.cq.attach_source(place.bit, Polled::new(&core, sends, receives));
                } else {
                    place.cq.attach(place.bit, &core, sends, receives);
                }
            };
            attach(&send, true, one_cq);
            if !one_cq {
                attach(&recv, false, true);
            }
            receives = Some((queue, inbound));
            Ok(core)
        })?;
        let (recv_queue, inbound) = receives.expect("made together with the core");
        Ok(Self {
            core,
            recv_queue,
            inbound,
            access: Access::empty(),
            timeout: 0,
            retry_cnt: 0,
            last_plain: transport.last_plain(),
        })
    }

    /// Checks a request against the queue's sizes; returns its length in bytes.
    #[inline]
    fn check_send(&self, wr: &SendWr<'_>, queued: usize) -> Result<u64> {
        let cap = self.core.cap();
        let len_bytes = wr.len_bytes();
        let inline = wr.send_flags.contains(SendFlags::INLINE);
        // Flags of foreign programs that mean nothing here lie above those that do.
        let plain = wr.opcode.0 <= self.last_plain.0 && wr.send_flags.bits() <= SendFlags::all().bits();
        let in_limits = queued < cap.max_send_wr as usize
            && wr.sges().len() <= cap.max_send_sge as usize
            && len_bytes <= MAX_MESSAGE_BYTES
            && !(inline && (len_bytes > cap.max_inline_data.into() || wr.opcode.returns_data()));
        if plain && in_limits { Ok(len_bytes) } else { self.check_rare(wr, queued, in_limits) }
    }

    /// The rest of `check_send`: atomics, and why it refuses.
    #[inline(never)]
    fn check_rare(&self, wr: &SendWr<'_>, queued: usize, in_limits: bool) -> Result<u64> {
        let is_atomic = matches!(wr.opcode, WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD);
        let known = wr.send_flags.bits() <= SendFlags::all().bits();
        if self.core.transport().has_atomics()
            && is_atomic
            && known
            && in_limits
            && wr.len_bytes() >= ATOMIC_BYTES
        {
            return Ok(ATOMIC_BYTES);
        }
        Err(self.refuse_send(wr, queued))
    }

    #[cold]
    fn refuse_send(&self, wr: &SendWr<'_>, queued: usize) -> Error {
        const OP: &str = "post_send";
        let (cap, len_bytes) = (self.core.cap(), wr.len_bytes());
        if queued >= cap.max_send_wr as usize {
            return Error::Exhausted {
                operation: OP,
                what: "places in the send queue",
                limit: cap.max_send_wr.into(),
                remedy: "poll the completion queue, or create the queue pair with a larger max_send_wr",
            };
        }
        if wr.send_flags.bits() > SendFlags::all().bits() {
            return unknown_flags(wr);
        }
        let last = if self.core.transport().has_atomics() {
            WrOpcode::ATOMIC_FETCH_AND_ADD
        } else {
            self.last_plain
        };
        if wr.opcode.0 > last.0 {
            let what = format!("opcode {} over {:?}", wr.opcode.0, self.qp_type());
            return Error::Unsupported { operation: OP, provider: crate::NAME, what };
        }
        if wr.sges().len() > cap.max_send_sge as usize {
            let what = format!("{} elements; max_send_sge is {}", wr.sges().len(), cap.max_send_sge);
            return Error::invalid(OP, what);
        }
        if len_bytes > MAX_MESSAGE_BYTES {
            return Error::invalid(
                OP,
                format!("{len_bytes} bytes; a message has at most {MAX_MESSAGE_BYTES}"),
            );
        }
        if wr.opcode.returns_data() && wr.send_flags.contains(SendFlags::INLINE) {
            return Error::invalid(OP, "what brings data back (READ, atomics) cannot be inline");
        }
        if wr.opcode.returns_data() {
            let what = format!("an atomic's elements hold {len_bytes} bytes; its result has {ATOMIC_BYTES}");
            return Error::invalid(OP, what);
        }
        Error::invalid(OP, format!("{len_bytes} inline bytes; max_inline_data is {}", cap.max_inline_data))
    }

    #[inline]
    fn check_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        // With shared receives the queue pair has room for none.
        let fits = !self.recv_queue.is_full() && wr.sges().len() <= self.core.cap().max_recv_sge as usize;
        if fits && self.core.allows(wr.sges(), Access::LOCAL_WRITE) {
            Ok(())
        } else {
            Err(self.refuse_recv(wr))
        }
    }

    /// Why `check_recv` refused.
    #[cold]
    fn refuse_recv(&self, wr: &RecvWr<'_>) -> Error {
        const OP: &str = "post_recv";
        let cap = self.core.cap();
        if self.core.shares_receives() {
            return Error::invalid(
                OP,
                "the queue pair's receives are shared: post to the shared receive queue",
            );
        }
        if wr.sges().len() > cap.max_recv_sge as usize {
            let what = format!("{} elements; max_recv_sge is {}", wr.sges().len(), cap.max_recv_sge);
            return Error::invalid(OP, what);
        }
        if !self.core.allows(wr.sges(), Access::LOCAL_WRITE) {
            return Error::invalid(OP, "an element's lkey, bounds or LOCAL_WRITE permission do not allow it");
        }
        // Not asked again: who polls may have made room meanwhile.
        Error::Exhausted {
            operation: OP,
            what: "places in the receive queue",
            limit: cap.max_recv_wr.into(),
            remedy: "poll the completion queue, or create the queue pair with a larger max_recv_wr",
        }
    }

    #[cold]
    fn wrong_state(&self, operation: &'static str, remedy: &'static str) -> PostError {
        let (object, state) = (format!("queue pair {:#x}", self.core.qpn()), self.core.state().to_string());
        if let Err(source) = self.core.process.require_here(operation) {
            return PostError { posted: 0, source };
        }
        PostError { posted: 0, source: Error::InvalidState { operation, object, state, remedy } }
    }

    /// Posts a lone one-sided request that earlier grants cover; false, and nothing done, otherwise.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    #[inline]
    unsafe fn post_repeated(&mut self, wr: &SendWr<'_>) -> bool {
        let core = &*self.core;
        let cap = core.cap();
        // Nothing waits, and the queue pair sends.
        if core.send.is_open() || core.state() != QpState::Rts || core.unpolled() >= cap.max_send_wr as usize
        {
            return false;
        }
        // SAFETY: `&mut self`: we are the one owner, and have no guard.
        let mut send = unsafe { core.send.owner() };
        // SAFETY: the caller's promise.
        let done = unsafe { send.repeat(wr, cap.max_inline_data) };
        if done {
            core.stats.executed(wr.opcode, wr.len_bytes());
            core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, wr.len_bytes());
        }
        done
    }

    /// Posts requests in order and announces them once.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    #[inline(never)]
    unsafe fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let core = &*self.core;
        if !core.state().accepts_sends() {
            return Err(self.wrong_state("post_send", "bring the queue pair to RTS first"));
        }
        // SAFETY: `&mut self`: we are the one owner, and have no guard.
        let mut send = unsafe { core.send.owner() };
        if send.waiting() > 0 {
            send.resume(core);
        }
        let mut result = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            match self.check_send(wr, core.unpolled() + send.waiting()) {
                // SAFETY: the caller's promise.
                Ok(len_bytes) if core.state() == QpState::Rts => unsafe { send.post(core, wr, len_bytes) },
                // SAFETY: as above.
                Ok(_) if core.state() == QpState::Sqd => unsafe { send.hold(core, wr) },
                Ok(_) => core.flush_send(wr.wr_id, wr.opcode),
                Err(source) => {
                    result = Err(PostError { posted, source });
                    break;
                }
            }
        }
        send.ring();
        let waits = send.waiting() > 0;
        drop(send);
        if waits {
            core.after_leaving_sends();
        }
        result
    }
}

/// A flag that asks for something the device does not have, as offloads of checksums.
#[cold]
pub(crate) fn unknown_flags(wr: &SendWr<'_>) -> Error {
    let what = format!("send flags {:#x}; there are {:#x}", wr.send_flags.bits(), SendFlags::all().bits());
    Error::Unsupported { operation: "post_send", provider: crate::NAME, what }
}

/// The sizes that a queue pair gets.
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
        max_inline_data: MAX_INLINE_BYTES,
    })
}

impl RawQp for Qp {
    fn qp_num(&self) -> u32 {
        self.core.qpn()
    }

    fn qp_type(&self) -> QpType {
        self.core.transport().qp_type()
    }

    fn state(&self) -> QpState {
        self.core.state()
    }

    fn cap(&self) -> QpCap {
        *self.core.cap()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.modify_to(attr)
    }

    #[inline]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if let [wr] = wrs
            // SAFETY: the caller's promise.
            && unsafe { self.post_repeated(wr) }
        {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.post_batch(wrs) }
    }

    unsafe fn check_sends(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let core = &*self.core;
        if !core.state().accepts_sends() {
            return Err(self.wrong_state("post_send", "bring the queue pair to RTS first"));
        }
        // SAFETY: `&mut self`: we are the one owner, and have no guard.
        let mut send = unsafe { core.send.owner() };
        if send.waiting() > 0 {
            send.resume(core);
        }
        let queued = core.unpolled() + send.waiting();
        for (posted, wr) in wrs.iter().enumerate() {
            self.check_send(wr, queued + posted).map_err(|source| PostError { posted, source })?;
        }
        Ok(())
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if !self.core.state().accepts_receives() {
            return Err(self.wrong_state("post_recv", "bring the queue pair to INIT first"));
        }
        let mut result = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            if let Err(source) = self.check_recv(wr) {
                result = Err(PostError { posted, source });
                break;
            }
            self.core.layout.write_advert(&self.inbound, self.recv_queue.next_seq(), wr.sges());
            // SAFETY: `&mut self`; checked that it is not full and the list not too long.
            unsafe { self.recv_queue.push(wr.wr_id, wr.sges()) };
        }
        self.inbound.store(RQ_POSTED, self.recv_queue.next_seq(), Release);
        if credit::is_asked(&self.inbound) {
            self.core.give_credit();
        }
        if self.core.state() == QpState::Err {
            self.core.announce_locally(true);
        }
        result
    }

    fn places_in_order(&self, mr: &dyn RawMr) -> bool {
        mr.as_any().is::<Mr>()
    }

    fn is_quiesced(&self) -> bool {
        let core = &*self.core;
        core.is_revoked() && core.is_quiesced() && core.process.past_lives.are_quiesced(core.qpn())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.core.process.is_inherited() {
            return;
        }
        self.core.set_state(QpState::Reset);
        self.core.close();
        self.core.leave_behind();
        self.core.detach();
        self.core.process.unregister_qp(self.core.qpn());
    }
}
