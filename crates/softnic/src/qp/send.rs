//! The send side of a queue pair. The initiator executes everything itself, in `post_send`, as far as it can; requests
//! that must wait (no receive posted, ring full, peer not ready) stay in order in a queue and are continued by the next
//! post or poll.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use farcall_verbs::{
    Access, QpState, RnrTimer, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode, WrTarget,
};

use super::by_owner::ByOwner;
use super::drain::Drain;
use super::grants::Grants;
use super::remote::{Kept, Remote};
use super::shared_target::InFlight;
use super::transfer::{gather, scatter};
use super::unreliable::end_of_dropped;
use super::wait_queue::{Patience, TARGET_PATIENCE, Timers, Wait, WaitQueue};
use super::{Connected, QpCore};
use crate::credit;
use crate::flight::Event;
use crate::handoff::LeavesWork;
use crate::hazard;
use crate::peer::{Asked, Interest, LongMeeting};
use crate::rendezvous::Violation;
use crate::ring::{Kind, RNR_TIMER};
use crate::sync::atomic::Ordering::Relaxed;

/// Everything that posting needs. What every message does comes first: see [`QpCore`].
#[repr(C)]
pub(super) struct SendSide {
    pub(super) waiting: WaitQueue,
    pub(super) transport: Connected,
    /// A WRITE since the last full fence: a READ must not overtake it (IBA 9.5: RC ordering).
    pub(super) wrote: bool,
    /// Messages published since the target was last told, and whether one asked for a solicited event.
    pub(super) unannounced: bool,
    pub(super) solicited: bool,
    pub(super) remote: Option<Remote>,
    /// What the last WRITE and the last READ were granted: a protocol's two directions are two regions.
    write_grants: Option<Grants>,
    read_grants: Option<Grants>,
    pub(super) dest_qpn: u32,
    /// With the target's process, until that has answered.
    pub(super) meeting: Option<Arc<LongMeeting>>,
    /// Ours in the answers that we ask the peer for.
    pub(super) interest: Interest,
    pub(super) timers: Timers,
    pub(super) in_flight: InFlight,
    pub(super) drain: Option<Drain>,
    /// What the oldest waiting request waits for, and when it gives up.
    pub(super) gives_up: Option<Patience>,
    /// When the target's process was last given up, over UC.
    unanswered_since: Option<Instant>,
    /// The oldest request, if the target's service thread executes it.
    pub(super) by_owner: ByOwner,
}

/// A request as it is executed, now or later.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) opcode: WrOpcode,
    pub(super) flags: SendFlags,
    pub(super) imm_be: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    /// As posted; what an atomic works with.
    pub(super) target: &'a WrTarget,
    pub(super) sges: &'a [Sge],
    pub(super) len_bytes: u64,
}

/// What came of executing a request.
pub(super) enum Step {
    Done,
    /// It is at a target with shared receives, which has yet to accept it.
    Published,
    Wait(Wait),
    Failed(WcStatus),
}

impl LeavesWork for SendSide {
    fn has_work(&self) -> bool {
        self.waiting.len() > 0
    }
}

pub(super) const fn completion_opcode(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::SEND | WrOpcode::SEND_WITH_IMM => WcOpcode::SEND,
        WrOpcode::READ => WcOpcode::RDMA_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
        WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
        _ => WcOpcode::RDMA_WRITE,
    }
}

impl SendSide {
    pub(super) fn new(transport: Connected) -> Self {
        Self {
            dest_qpn: 0,
            remote: None,
            meeting: None,
            interest: Interest::default(),
            timers: Timers { transport: None, rnr_retries: None },
            write_grants: None,
            read_grants: None,
            waiting: WaitQueue::default(),
            in_flight: InFlight::default(),
            transport,
            drain: None,
            gives_up: None,
            unanswered_since: None,
            wrote: false,
            by_owner: ByOwner::default(),
            unannounced: false,
            solicited: false,
        }
    }

    /// Whether the target may be waited for, and told of errors.
    pub(super) fn is_reliable(&self) -> bool {
        self.transport == Connected::Reliable
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Posts one checked request.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(super) unsafe fn post(&mut self, core: &QpCore, wr: &SendWr<'_>, len_bytes: u64) {
        if self.waiting.len() == 0 {
            let target = wr.rdma();
            let request = Request {
                opcode: wr.opcode,
                flags: wr.send_flags,
                imm_be: wr.imm_data_be,
                remote_addr: target.remote_addr,
                rkey: target.rkey,
                target: wr.target(),
                sges: wr.sges(),
                len_bytes,
            };
            // SAFETY: the caller's promise.
            let step = match unsafe { self.execute(core, &request) } {
                Step::Done => Step::Done,
                step => self.judge(core, &request, step),
            };
            match step {
                Step::Done => {
                    return core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, len_bytes);
                }
                Step::Failed(status) => return self.fail(core, wr.wr_id, wr.opcode, status),
                Step::Wait(wait) => self.begin_wait(core, wait),
                Step::Published => {
                    self.in_flight.count = 1;
                    self.begin_wait(core, Wait::Target);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.waiting.push(wr, core.cap().max_send_wr as usize) };
        self.publish_more(core);
    }

    /// What becomes of a request that could not be executed. Over UC it is dropped, unless all that is missing is an answer
    /// of the target's process: a device would give it at once, while a process must get a processor first.
    #[cold]
    fn judge(&mut self, core: &QpCore, request: &Request<'_>, step: Step) -> Step {
        match (step, self.transport) {
            (step, Connected::Reliable) => step,
            (Step::Wait(Wait::Answer), Connected::Unreliable) if !self.is_given_up() => {
                Step::Wait(Wait::Answer)
            }
            (_, Connected::Unreliable) => {
                if self.by_owner.is_under_way() {
                    self.abandon();
                }
                match end_of_dropped(core, request) {
                    WcStatus::SUCCESS => Step::Done,
                    fault => Step::Failed(fault),
                }
            }
        }
    }

    /// Whether no answer of the target's process is waited for at the moment, over UC.
    fn is_given_up(&self) -> bool {
        self.unanswered_since.is_some_and(|since| since.elapsed() < TARGET_PATIENCE)
    }

    /// Executes a one-sided request that repeats an earlier one's grants; false, and nothing done, if it does not.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(super) unsafe fn repeat(&mut self, wr: &SendWr<'_>, inline_bytes_max: u32) -> bool {
        let [sge] = wr.sges() else { return false };
        if wr.send_flags.bits() > SendFlags::all().bits() {
            return false;
        }
        if wr.send_flags.contains(SendFlags::INLINE) && sge.length > inline_bytes_max {
            return false;
        }
        match (wr.opcode, &self.write_grants, &self.read_grants) {
            (WrOpcode::WRITE, Some(grants), _) => {
                self.wrote = true;
                // SAFETY: the caller's promise.
                unsafe { grants.write(wr, sge) }
            }
            (WrOpcode::READ, _, Some(grants)) => {
                if std::mem::take(&mut self.wrote) {
                    fence(Ordering::SeqCst);
                }
                // SAFETY: the caller's promise.
                unsafe { grants.read(wr, sge) }
            }
            _ => false,
        }
    }

    /// Continues requests that wait.
    pub(super) fn resume(&mut self, core: &QpCore) {
        while let Some(oldest) = self.waiting.front() {
            if !matches!(core.state(), QpState::Rts | QpState::Sqd) {
                self.flush(core);
                break;
            }
            if self.drain.is_some_and(|drain| drain.left == 0) {
                break;
            }
            let len_bytes = oldest.len_bytes();
            let step = if self.in_flight.count > 0 {
                self.confirm(core)
            } else {
                // The slot outlives the call: `execute` touches everything but `waiting`, so it is lent out meanwhile.
                let sges = self.waiting.take_sges();
                let Some(parked) = self.waiting.front() else { break };
                let target = parked.target;
                let request = parked.request(&target, &sges);
                // SAFETY: the poster's promise holds until the request's completion.
                let step = match unsafe { self.execute(core, &request) } {
                    Step::Done => Step::Done,
                    step => self.judge(core, &request, step),
                };
                self.waiting.put_sges(sges);
                step
            };
            let status = match step {
                Step::Done => WcStatus::SUCCESS,
                Step::Failed(status) => status,
                Step::Published => {
                    self.in_flight.count = 1;
                    continue;
                }
                Step::Wait(wait) => match &mut self.gives_up {
                    Some(patience) if patience.is_for(wait) => {
                        if !patience.is_over(wait) {
                            break;
                        }
                        if !self.is_reliable() {
                            // Neither this one nor, for a while, those behind it wait any longer.
                            self.unanswered_since = Some(Instant::now());
                            continue;
                        }
                        if !self.withdraw() {
                            continue;
                        }
                        wait.ends_in()
                    }
                    // A peer that becomes ready but has no receive (or the reverse) begins a wait of its own.
                    _ => {
                        self.begin_wait(core, wait);
                        break;
                    }
                },
            };
            self.gives_up = None;
            let Some((wr_id, opcode, flags)) = self.waiting.pop() else { break };
            if status.is_success() {
                core.complete_send(wr_id, opcode, flags, len_bytes);
            } else {
                self.fail(core, wr_id, opcode, status);
            }
            self.drained_one(core);
        }
        self.publish_more(core);
        self.ring();
        self.ask_to_match();
        if self.waiting.len() == 0 {
            core.set_send_waits(false);
            if let Some(remote) = self.remote.as_ref().filter(|remote| !remote.layout.shared) {
                credit::ask_no_more(remote.inbound());
            }
        }
    }

    /// Whether nobody but who polls has anything to do for what waits: it waits for a receive that the target's owner will
    /// post, if for anything. Targets that match receives themselves, and those not ready, are asked by service threads.
    pub(super) fn needs_polls_only(&self) -> bool {
        let is_shared = self.remote.as_ref().is_none_or(|remote| remote.layout.shared);
        let waits_for = self.gives_up.as_ref().map(|patience| patience.of);
        self.waiting.len() == 0 || (!is_shared && waits_for == Some(Wait::Receiver))
    }

    /// As `resume`, for an owner who sleeps: the target tells from now on what it gives.
    #[cold]
    pub(super) fn ask_and_resume(&mut self, core: &QpCore) {
        if self.is_reliable()
            && let Some(remote) = &self.remote
            && credit::ask(remote.inbound())
        {
            core.stats.wakes_wanted.increment();
            // What it gave before is not announced.
            self.resume(core);
        }
    }

    /// Tells the target what was published since the last time: one announcement for a whole batch.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            let solicited = std::mem::take(&mut self.solicited);
            match &self.remote {
                // Which receive it meets, and when, is found out there: that makes the completion and its event.
                Some(remote) if remote.layout.shared => remote.doorbell.nudge(),
                Some(remote) => remote.doorbell.announce(solicited),
                None => {}
            }
        }
    }

    /// How long the target wants to be left alone if it has no receive.
    fn rnr_timer(&self) -> Duration {
        let code = self.remote.as_ref().map_or(0, |remote| remote.inbound().load(RNR_TIMER, Relaxed));
        RnrTimer(code as u8).duration()
    }

    #[cold]
    fn begin_wait(&mut self, core: &QpCore, wait: Wait) {
        let after = match wait {
            Wait::Receiver => self.timers.rnr_retries.map(|retries| self.rnr_timer() * retries.into()),
            Wait::Answer if !self.is_reliable() => Some(TARGET_PATIENCE),
            Wait::Peer | Wait::Target | Wait::Answer => self.timers.transport,
        };
        self.gives_up = Some(Patience::new(wait, after));
        core.stats.waits.increment();
        core.set_send_waits(true);
        if core.retry_later() {
            // Who waits again and again is recorded once.
            core.stats.record(Event::Wait as u64, wait as u64);
        }
    }

    #[cold]
    fn fail(&mut self, core: &QpCore, wr_id: u64, opcode: WrOpcode, status: WcStatus) {
        self.ring();
        core.fail_send(wr_id, opcode, status);
        if self.is_reliable() {
            core.enter_error();
        } else {
            core.enter_send_error();
        }
        self.flush(core);
    }

    /// Ends everything that waits.
    #[cold]
    pub(super) fn flush(&mut self, core: &QpCore) {
        (self.in_flight, self.drain) = (InFlight::default(), None);
        self.abandon();
        while let Some((wr_id, opcode, _)) = self.waiting.pop() {
            core.fail_send(wr_id, opcode, WcStatus::WR_FLUSH_ERR);
        }
        core.set_send_waits(false);
    }

    /// Begins anew: drops everything that waits, without completions, and the way to the peer (RESET, destroy).
    pub(super) fn renew(&mut self, core: &QpCore) {
        *self = Self::new(core.transport());
        core.forget_completions();
        core.set_send_waits(false);
    }

    /// # Safety
    /// The request's memory is the poster's promise.
    #[inline]
    unsafe fn execute(&mut self, core: &QpCore, request: &Request<'_>) -> Step {
        if self.remote.is_none()
            && let Some(step) = self.connect(core)
        {
            return step;
        }
        if self.remote.as_ref().is_some_and(|remote| remote.peer.is_dead()) {
            return Step::Failed(WcStatus::RETRY_EXC_ERR);
        }
        if !Self::is_allowed(core, request) {
            return Step::Failed(WcStatus::LOC_PROT_ERR);
        }
        // SAFETY: the poster's promise, passed on.
        let step = unsafe {
            match request.opcode {
                WrOpcode::WRITE => self.write(request),
                WrOpcode::READ => self.read(request),
                WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => self.atomic(request),
                _ => self.message(request),
            }
        };
        if let Step::Done = step {
            core.stats.executed(request.opcode, request.len_bytes);
        }
        match step {
            Step::Failed(WcStatus::REM_ACCESS_ERR) => self.nak(Kind::AccessNak),
            Step::Failed(WcStatus::REM_OP_ERR) if request.opcode.consumes_receive() => {
                self.nak(Kind::BadReceive)
            }
            // A message that is too long has told it itself.
            Step::Failed(WcStatus::REM_INV_REQ_ERR)
                if !matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM) =>
            {
                self.nak(Kind::InvalidNak)
            }
            Step::Done if matches!(request.opcode, WrOpcode::WRITE | WrOpcode::READ) => {
                self.remember(core, request)
            }
            _ => {}
        }
        step
    }

    /// Whether its local elements are allowed.
    #[inline]
    pub(super) fn is_allowed(core: &QpCore, request: &Request<'_>) -> bool {
        let need = if request.opcode.returns_data() { Access::LOCAL_WRITE } else { Access::empty() };
        request.flags.contains(SendFlags::INLINE) || core.allows(request.sges, need)
    }

    /// Keeps what a one-sided request was granted, for the next like it.
    fn remember(&mut self, core: &QpCore, request: &Request<'_>) {
        let inline = request.flags.contains(SendFlags::INLINE);
        if let (Some(remote), [sge]) = (&mut self.remote, request.sges)
            && request.len_bytes > 0
            && let Asked::Granted(Kept::Mapped(at)) = remote.find_region(request.rkey, false)
        {
            let lkey = (!inline).then_some(sge.lkey);
            let local = lkey.and_then(|lkey| core.process.regions.local(lkey, core.pd()));
            let grants =
                if request.opcode == WrOpcode::READ { &mut self.read_grants } else { &mut self.write_grants };
            if !grants.as_ref().is_some_and(|grants| grants.covers(request.rkey, lkey)) {
                *grants = Grants::of(remote, at, lkey.zip(local));
            }
        }
    }

    /// Tries to reach a peer that was not ready when we became ready to receive; `None` if it is reached now.
    #[cold]
    fn connect(&mut self, core: &QpCore) -> Option<Step> {
        match core.connect(self) {
            Ok(wait) => wait.map(Step::Wait),
            Err(_) => Some(Step::Failed(WcStatus::RETRY_EXC_ERR)),
        }
    }

    /// One-sided access to `len_bytes` of the target, checked and fenced; `access` is given the bytes' address here,
    /// unless the memory is not mapped: then the request's own elements are used.
    ///
    /// # Safety
    /// See `execute`.
    #[inline]
    pub(super) unsafe fn one_sided(
        &mut self,
        request: &Request<'_>,
        need: Access,
        access: impl FnOnce(*mut u8),
    ) -> Step {
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        if request.len_bytes == 0 {
            // No key is looked at (IBA 9.7.4.2.3), but the target must be there and take such requests.
            return match remote.accepts() {
                None => Step::Wait(Wait::Peer),
                Some(accept) if !accept.access().contains(need) => Step::Failed(WcStatus::REM_INV_REQ_ERR),
                Some(_) => Step::Done,
            };
        }
        for _ in 0..2 {
            let at = match remote.find_region(request.rkey, false) {
                Asked::Granted(Kept::Mapped(at)) => at,
                Asked::Granted(Kept::Private(region)) => {
                    // SAFETY: the poster's promise, passed on.
                    return unsafe { self.private(request, need, region) };
                }
                Asked::Refused(_) => return Step::Failed(WcStatus::REM_ACCESS_ERR),
                Asked::NotYet => return Step::Wait(Wait::Answer),
            };
            hazard::enter(remote.inbound(), hazard::of_region(request.rkey));
            let region = remote.cached(at);
            let (accepts, current) = (remote.accepts(), region.is_current(&remote.peer));
            let place = region.locate(request.remote_addr, request.len_bytes);
            let step = match (accepts, place) {
                (None, _) => Step::Wait(Wait::Peer),
                // The queue pair does not take such requests at all (IBA 11.6.2), whatever the key.
                (Some(accept), _) if !accept.access().contains(need) => {
                    hazard::leave(remote.inbound());
                    return Step::Failed(WcStatus::REM_INV_REQ_ERR);
                }
                (Some(_), Some(place)) if current && region.access.contains(need) => {
                    access(place);
                    hazard::leave(remote.inbound());
                    return Step::Done;
                }
                (Some(_), None) if current && region.around.is_some() => {
                    let whole = region.around.clone();
                    hazard::leave(remote.inbound());
                    let Some(whole) = whole else { return Step::Wait(Wait::Peer) };
                    // SAFETY: the poster's promise, passed on.
                    return unsafe { self.private(request, need, whole) };
                }
                _ => Step::Failed(WcStatus::REM_ACCESS_ERR),
            };
            hazard::leave(remote.inbound());
            if current || matches!(step, Step::Wait(_)) {
                return step;
            }
            // The key may have been given to a new region since: look once more.
            remote.forget(at);
        }
        Step::Failed(WcStatus::REM_ACCESS_ERR)
    }

    /// # Safety
    /// See `execute`.
    #[inline]
    unsafe fn write(&mut self, request: &Request<'_>) -> Step {
        self.wrote = true;
        // SAFETY: `one_sided` gives an address with room for the whole request; the elements are the poster's promise.
        unsafe { self.one_sided(request, Access::REMOTE_WRITE, |place| gather(place, request.sges)) }
    }

    /// # Safety
    /// See `execute`.
    #[inline]
    unsafe fn read(&mut self, request: &Request<'_>) -> Step {
        if std::mem::take(&mut self.wrote) {
            fence(Ordering::SeqCst);
        }
        // SAFETY: as in `write`.
        unsafe { self.one_sided(request, Access::REMOTE_READ, |place| scatter(place, request.sges)) }
    }

    /// Tells the target that we broke its rules, so that its end fails too, as a real responder's would.
    #[cold]
    fn nak(&mut self, kind: Kind) {
        if self.is_reliable()
            && let Some(remote) = &mut self.remote
            && remote.producer.has_room(0, 0)
        {
            remote.producer.payload_at();
            remote.producer.publish(kind, 0, 0, 0, 0);
            self.unannounced = true;
            if kind != Kind::BadReceive {
                // Its owner may wait for the event alone.
                let violation = if kind == Kind::AccessNak { Violation::Access } else { Violation::Request };
                remote.peer.tell_violation(remote.qpn(), remote.life(), violation);
            }
        }
    }
}
