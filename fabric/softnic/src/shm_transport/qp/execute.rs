//! Execution of requests by the initiator: it checks the grant, publishes a hazard, checks again, and copies.

use std::sync::atomic::{Ordering, fence};

use farcall_shm::hazard;
use farcall_shm::ring::{Kind, VIOLATION};
use farcall_verbs::{ATOMIC_BYTES, Access, QpState, SendFlags, SendWr, WcStatus, WrOpcode};

use super::QpCore;
use super::grants::Grants;
use super::initiator::{CachedRegion, Initiator};
use super::request::{ExecuteOutcome, Request, WaitReason};
use super::transfer::{gather, scatter};
use crate::process::PeerReply;
use crate::process::rendezvous::{RequestBody, Violation};

impl Initiator {
    /// Executes a request.
    ///
    /// # Safety
    /// The contract of [`farcall_verbs::RawQp::post_send`] applies to the request's memory: it is valid and
    /// unreferenced until the request completes.
    #[inline]
    pub(crate) unsafe fn execute(&mut self, core: &QpCore, request: &Request<'_>) -> ExecuteOutcome {
        if self.peer.liveness.is_known_exited() {
            return ExecuteOutcome::Failed(WcStatus::RETRY_EXC_ERR);
        }
        // SAFETY: by the contract of this function the request's memory is valid, as the callees require.
        let outcome = unsafe {
            match request.opcode {
                _ if !request.is_allowed(&core.shm.process.regions, core.pd) => self.local_fault(request),
                WrOpcode::WRITE => self.write(request),
                WrOpcode::READ if self.is_reliable => self.read(request),
                WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD if self.is_reliable => {
                    self.atomic(request)
                }
                opcode if opcode.returns_data() => ExecuteOutcome::Failed(WcStatus::LOC_QP_OP_ERR),
                _ => self.message(request),
            }
        };
        if let ExecuteOutcome::Done = outcome {
            core.stats.executed(request.opcode, request.len_bytes);
        }
        match outcome {
            ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR) => {
                self.nak(Kind::AccessNak, request.record_flags())
            }
            ExecuteOutcome::Failed(WcStatus::REM_OP_ERR) if request.opcode.consumes_receive() => {
                self.nak(Kind::BadReceive, 0)
            }
            // A message that is too long has notified the target by its record.
            ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR)
                if !matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM) =>
            {
                self.nak(Kind::InvalidNak, 0)
            }
            ExecuteOutcome::Done if is_one_sided(request.opcode) => self.remember(core, request),
            _ => {}
        }
        outcome
    }

    /// Returns the result of a request whose local elements are not permitted. An RNIC detects this when it reads them.
    /// For a request that returns data, it does so when the response arrives, so the target's refusal takes precedence
    /// (IBA 9.7.4.1; mlx5 does the same), and an atomic that the target permits is executed.
    #[cold]
    fn local_fault(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        let fault = ExecuteOutcome::Failed(WcStatus::LOC_PROT_ERR);
        if !request.opcode.returns_data() {
            return fault;
        }
        if !self.is_reliable {
            return ExecuteOutcome::Failed(WcStatus::LOC_QP_OP_ERR);
        }
        if request.opcode.is_atomic() {
            if request.len_bytes != ATOMIC_BYTES {
                return ExecuteOutcome::Failed(WcStatus::LOC_LEN_ERR);
            }
            // An RNIC's target has changed the word before its response arrives.
            return match self.change(request) {
                (ExecuteOutcome::Done, _) => fault,
                (outcome, _) => outcome,
            };
        }
        let need = Access::REMOTE_READ;
        let Some(accept) = self.accepts() else { return ExecuteOutcome::Wait(WaitReason::Peer) };
        if !accept.access().contains(need) {
            return ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR);
        }
        let (remote_addr, len_bytes) = (request.remote_addr, request.len_bytes);
        let may = match self.find_region(request.rkey, false) {
            _ if len_bytes == 0 => true,
            PeerReply::Granted(CachedRegion::Mapped(at)) => {
                let region = self.cached(at);
                let is_inside = region.locate(remote_addr, len_bytes).is_some()
                    || region.whole.as_ref().is_some_and(|whole| whole.contains(remote_addr, len_bytes));
                is_inside && region.access.contains(need) && region.is_current(&self.peer)
            }
            PeerReply::Granted(CachedRegion::Unmapped(region)) => {
                region.contains(remote_addr, len_bytes)
                    && region.access.contains(need)
                    && region.is_current(&self.peer)
            }
            PeerReply::Refused(_) => false,
            PeerReply::Pending => return ExecuteOutcome::Wait(WaitReason::PeerReply),
        };
        if may { fault } else { ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR) }
    }

    /// Posts a one-sided request that is covered by the grants of an earlier one. Returns `false` and does nothing if
    /// it is not covered. Must only be called while no request waits.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(crate) unsafe fn post_repeated(&mut self, core: &QpCore, wr: &SendWr<'_>) -> bool {
        let cap = &core.cap;
        let done = is_one_sided(wr.opcode)
            && core.state() == QpState::Rts
            && core.unpolled() < cap.max_send_wr as usize
            // SAFETY: by the contract of this function the request's memory is valid, as `repeat` requires.
            && unsafe { self.repeat(wr, cap.max_inline_data) };
        if done {
            core.stats.executed(wr.opcode, wr.len_bytes());
            core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, wr.len_bytes());
        }
        done
    }

    /// Executes a one-sided request that is covered by the grants of an earlier one. Returns `false` and does nothing
    /// if it is not covered.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    unsafe fn repeat(&mut self, wr: &SendWr<'_>, inline_bytes_max: u32) -> bool {
        let [sge] = wr.sges() else { return false };
        if wr.send_flags.bits() > SendFlags::all().bits() {
            return false;
        }
        let is_inline = wr.send_flags.contains(SendFlags::INLINE);
        if is_inline && (sge.length > inline_bytes_max || wr.opcode.returns_data()) {
            return false;
        }
        if wr.opcode == WrOpcode::WRITE {
            self.wrote = true;
            // SAFETY: by the contract of this function `sge`, the request's only element, is valid, as `Grants::write`
            // requires.
            let write = |grants: &Grants| unsafe { grants.write(wr, sge) };
            return self.write_grants.as_ref().is_some_and(write)
                || self.earlier_write_grants.as_ref().is_some_and(write);
        }
        let grants = if wr.opcode == WrOpcode::READ { &self.read_grants } else { &self.change_grants };
        let Some(grants) = grants else { return false };
        match wr.opcode {
            WrOpcode::READ => {
                if std::mem::take(&mut self.wrote) {
                    fence(Ordering::SeqCst);
                }
                // SAFETY: by the contract of this function `sge`, the request's only element, is valid, as
                // `Grants::read` requires.
                unsafe { grants.read(wr, sge) }
            }
            _ => {
                // The same ordering as in `Initiator::change`.
                if std::mem::replace(&mut self.wrote, true) {
                    fence(Ordering::SeqCst);
                }
                // SAFETY: by the contract of this function `sge`, the request's only element, is valid, as
                // `Grants::change` requires.
                unsafe { grants.change(wr, sge) }
            }
        }
    }

    fn grants_of(&mut self, opcode: WrOpcode) -> &mut Option<Grants> {
        match opcode {
            WrOpcode::WRITE => &mut self.write_grants,
            WrOpcode::READ => &mut self.read_grants,
            _ => &mut self.change_grants,
        }
    }

    /// Stores the grants of a one-sided request for later requests like it.
    fn remember(&mut self, core: &QpCore, request: &Request<'_>) {
        let inline = request.flags.contains(SendFlags::INLINE);
        let rkey = if request.opcode.is_atomic() { request.target.atomic().rkey } else { request.rkey };
        if let [sge] = request.sges
            && request.len_bytes > 0
            && let PeerReply::Granted(CachedRegion::Mapped(at)) = self.find_region(rkey, false)
        {
            let lkey = (!inline).then_some(sge.lkey);
            let local = lkey.and_then(|lkey| core.shm.process.regions.local(lkey, core.pd));
            let covers = |known: &Grants| known.covers(rkey, lkey);
            let is_write = request.opcode == WrOpcode::WRITE;
            let is_known = self.grants_of(request.opcode).as_ref().is_some_and(covers)
                || is_write && self.earlier_write_grants.as_ref().is_some_and(covers);
            if is_known {
                return;
            }
            let grants = self.grants_for(at, lkey.zip(local));
            let before = std::mem::replace(self.grants_of(request.opcode), grants);
            if is_write {
                self.earlier_write_grants = before;
            }
        }
    }

    /// Announces the records published since the last call to the target: one announcement for an entire batch.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            let solicited = std::mem::take(&mut self.solicited);
            if self.layout.shared {
                // The target matches messages with receives itself. The resulting completion raises the event.
                self.doorbell.request_service();
            } else {
                self.doorbell.announce(solicited);
            }
        }
    }

    /// Executes a one-sided access to `len_bytes` of the target, checked and fenced. `access` receives the local
    /// address of the bytes. If the memory is not mapped, the request's own elements are used instead.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    #[inline]
    pub(crate) unsafe fn one_sided(
        &mut self,
        request: &Request<'_>,
        need: Access,
        access: impl FnOnce(*mut u8),
    ) -> ExecuteOutcome {
        if request.len_bytes == 0 {
            // No key is checked (IBA 9.7.4.2.3), but the target must be connected and permit such requests.
            return match self.accepts() {
                None => ExecuteOutcome::Wait(WaitReason::Peer),
                Some(accept) if !accept.access().contains(need) => {
                    ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR)
                }
                Some(_) => ExecuteOutcome::Done,
            };
        }
        for _ in 0..2 {
            let at = match self.find_region(request.rkey, false) {
                PeerReply::Granted(CachedRegion::Mapped(at)) => at,
                PeerReply::Granted(CachedRegion::Unmapped(region)) => {
                    // SAFETY: by the contract of this function the request's memory is valid, as `access_unmapped`
                    // requires.
                    return unsafe { self.access_unmapped(request, need, region) };
                }
                PeerReply::Refused(_) => return ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR),
                PeerReply::Pending => return ExecuteOutcome::Wait(WaitReason::PeerReply),
            };
            hazard::enter(self.inbound(), hazard::of_region(request.rkey));
            let region = self.cached(at);
            let (accepts, current) = (self.accepts(), region.is_current(&self.peer));
            let place = region.locate(request.remote_addr, request.len_bytes);
            let outcome = match (accepts, place) {
                (None, _) => ExecuteOutcome::Wait(WaitReason::Peer),
                // The queue pair does not permit such requests at all (IBA 11.6.2), regardless of the key.
                (Some(accept), _) if !accept.access().contains(need) => {
                    hazard::leave(self.inbound());
                    return ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR);
                }
                (Some(_), Some(place)) if current && region.access.contains(need) => {
                    access(place);
                    hazard::leave(self.inbound());
                    return ExecuteOutcome::Done;
                }
                (Some(_), None) if current && region.whole.is_some() => {
                    let whole = region.whole.clone();
                    hazard::leave(self.inbound());
                    let Some(whole) = whole else { return ExecuteOutcome::Wait(WaitReason::Peer) };
                    // SAFETY: by the contract of this function the request's memory is valid, as `access_unmapped`
                    // requires.
                    return unsafe { self.access_unmapped(request, need, whole) };
                }
                _ => ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR),
            };
            hazard::leave(self.inbound());
            if current || matches!(outcome, ExecuteOutcome::Wait(_)) {
                return outcome;
            }
            // The key may have been reused for a new region; search once more.
            self.forget(at);
        }
        ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR)
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    #[inline]
    pub(super) unsafe fn write(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        self.wrote = true;
        // SAFETY: `one_sided` passes an address with `len_bytes` valid bytes in registered memory, to which no
        // reference exists by the contract of `reg_mr`. By the contract of this function the elements are readable.
        unsafe { self.one_sided(request, Access::REMOTE_WRITE, |place| gather(place, request.sges)) }
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    #[inline]
    unsafe fn read(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        if std::mem::take(&mut self.wrote) {
            fence(Ordering::SeqCst);
        }
        // SAFETY: `one_sided` passes an address with `len_bytes` valid bytes. By the contract of this function the
        // elements are writable and unreferenced.
        unsafe { self.one_sided(request, Access::REMOTE_READ, |place| scatter(place, request.sges)) }
    }

    /// Records a violation at the target. From now on the target's queue pair reports the error state when it is
    /// queried.
    #[cold]
    pub(super) fn note_violation(&self, kind: Kind) {
        if self.is_reliable {
            self.inbound().store(VIOLATION, kind as u64, Ordering::Release);
        }
    }

    /// Notifies the target of a violation, so that its queue pair fails too, as that of a real responder would. `flags`
    /// are those of the request.
    #[cold]
    fn nak(&mut self, kind: Kind, flags: u8) {
        self.note_violation(kind);
        if self.is_reliable && self.producer.has_room(0, 0) {
            self.producer.publish_empty(kind, flags, 0, 0);
            self.unannounced = true;
            if kind != Kind::BadReceive {
                // The application may wait for the event without polling.
                let violation = if kind == Kind::AccessNak { Violation::Access } else { Violation::Request };
                let (dst_qpn, incarnation) = (self.qpn, self.incarnation);
                self.peer.send_oneway(RequestBody::Violated { dst_qpn, incarnation, violation });
            }
        }
    }
}

/// Returns whether the operation needs only the target's memory.
#[inline]
fn is_one_sided(opcode: WrOpcode) -> bool {
    matches!(opcode, WrOpcode::WRITE | WrOpcode::READ) || opcode.is_atomic()
}
