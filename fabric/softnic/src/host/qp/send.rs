//! The send side of a queue pair. Requests are executed in `post_send`, as far as they can be; those that must wait (no
//! receive posted, ring full, peer not ready) stay in order in a queue and are continued by the next post or poll.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use farcall_shm::ring::RNR_TIMER;
use farcall_shm::{PendingWork, notify};
use farcall_verbs::{QpState, RnrTimer, WcStatus, WrOpcode};

use super::drain::Drain;
use super::request::Step;
use super::shared_target::InFlight;
use super::wait_queue::{TARGET_WAIT_MIN, Timers, Wait, WaitLimit, WaitQueue};
use super::way::{Sought, Way};
use super::{Connected, QpCore};
use crate::host::flight::Event;
use crate::host::state;

/// Everything that posting needs. What every message does comes first: see [`QpCore`].
#[repr(C)]
pub(crate) struct SendSide {
    pub(crate) waiting: WaitQueue,
    pub(super) transport: Connected,
    pub(crate) way: Way,
    pub(crate) timers: Timers,
    pub(crate) drain: Option<Drain>,
    /// What the oldest waiting request waits for, and when it gives up.
    pub(super) wait_limit: Option<WaitLimit>,
    /// The wait that was last recorded.
    recorded: Option<Wait>,
    /// When the target's process was last given up, over UC.
    pub(super) unanswered_since: Option<Instant>,
}

impl PendingWork for SendSide {
    fn has_pending(&self) -> bool {
        self.waiting.len() > 0
    }
}

impl SendSide {
    pub(crate) fn new(transport: Connected) -> Self {
        Self {
            waiting: WaitQueue::default(),
            transport,
            way: Way::default(),
            timers: Timers { transport: None, rnr_retries: None },
            drain: None,
            wait_limit: None,
            recorded: None,
            unanswered_since: None,
        }
    }

    /// Whether the target may be waited for, and told of errors.
    pub(super) fn is_reliable(&self) -> bool {
        self.transport == Connected::Reliable
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The oldest request is at a target that has yet to accept it.
    pub(super) fn set_published(&mut self) {
        if let Way::Host(initiator) = &mut self.way {
            initiator.in_flight.count = 1;
        }
    }

    fn is_in_flight(&self) -> bool {
        self.way.initiator().is_some_and(|initiator| initiator.in_flight.count > 0)
    }

    /// Continues requests that wait.
    pub(crate) fn resume(&mut self, core: &QpCore) {
        while let Some(oldest) = self.waiting.front() {
            if !matches!(core.state(), QpState::Rts | QpState::Sqd) {
                self.flush(core);
                break;
            }
            if self.drain.is_some_and(|drain| drain.left == 0) {
                break;
            }
            let len_bytes = oldest.len_bytes();
            let status = match self.retry_oldest(core) {
                Step::Done => WcStatus::SUCCESS,
                Step::Failed(status) => status,
                Step::Published => {
                    self.set_published();
                    continue;
                }
                Step::Wait(wait) => match &mut self.wait_limit {
                    Some(wait_limit) if wait_limit.is_for(wait) => {
                        if !wait_limit.is_over(wait) {
                            break;
                        }
                        if !self.is_reliable() {
                            // Neither this one nor, for a while, those behind it wait any longer.
                            self.unanswered_since = Some(Instant::now());
                            continue;
                        }
                        if self.way.initiator_mut().is_some_and(|initiator| !initiator.withdraw()) {
                            continue;
                        }
                        wait.ends_in()
                    }
                    // A peer that becomes ready but has no receive (or the reverse) begins a wait of its own.
                    _ => {
                        if self.begin_wait(core, wait) {
                            continue;
                        }
                        break;
                    }
                },
            };
            self.wait_limit = None;
            let Some((wr_id, opcode, flags)) = self.waiting.pop() else { break };
            if status.is_success() {
                core.complete_send(wr_id, opcode, flags, len_bytes);
            } else {
                self.fail(core, wr_id, opcode, status);
            }
            self.drained_one(core);
        }
        self.leave(core);
    }

    /// Executes the oldest request again, or looks whether the target has accepted it.
    fn retry_oldest(&mut self, core: &QpCore) -> Step {
        if self.is_in_flight()
            && let Way::Host(initiator) = &mut self.way
        {
            return initiator.confirm(core, &self.waiting);
        }
        // The slot outlives the call: `execute` touches everything but `waiting`, so it is lent out meanwhile.
        let sges = self.waiting.take_sges();
        let Some(parked) = self.waiting.front() else { return Step::Done };
        let target = parked.target;
        let request = parked.request(&target, &sges);
        // SAFETY: the poster's promise holds until the request's completion.
        let step = unsafe { self.execute(core, &request) };
        let step = self.judge(core, &request, step);
        self.waiting.put_sges(sges);
        if self.way.initiator_mut().is_some_and(|initiator| initiator.owner_request.take_progress()) {
            // What is left may take as long again.
            self.wait_limit = None;
        }
        step
    }

    /// After looking at what waits.
    fn leave(&mut self, core: &QpCore) {
        self.publish_more(core);
        self.ring();
        if let Way::Host(initiator) = &mut self.way {
            let waited = self.wait_limit.as_ref().map_or(Duration::ZERO, WaitLimit::waited);
            initiator.look_ended(core, waited);
        }
        if self.waiting.len() == 0 {
            core.set_send_waits(false);
            if let Some(initiator) = self.way.initiator().filter(|initiator| !initiator.layout.shared) {
                notify::cancel(initiator.inbound());
            }
        }
    }

    /// Publishes small messages behind the one in flight, as many as fit.
    pub(super) fn publish_more(&mut self, core: &QpCore) {
        if let Way::Host(initiator) = &mut self.way {
            let limit = self.drain.map_or(usize::MAX, |drain| drain.left);
            initiator.publish_more(core, &self.waiting, limit);
        }
    }

    /// Whether nobody but who polls has anything to do for what waits: it waits for a receive that the target's owner
    /// will post, if for anything. Targets that match receives themselves, and those not ready, are asked by service
    /// threads.
    pub(crate) fn needs_polls_only(&self) -> bool {
        let is_shared = self.way.initiator().is_none_or(|initiator| initiator.layout.shared);
        let waits_for = self.wait_limit.as_ref().map(|wait_limit| wait_limit.of);
        self.waiting.len() == 0 || (!is_shared && waits_for == Some(Wait::Receiver))
    }

    /// As `resume`, for an owner who sleeps: the target tells from now on what it gives.
    #[cold]
    pub(crate) fn ask_and_resume(&mut self, core: &QpCore) {
        let Way::Host(initiator) = &mut self.way else { return };
        if initiator.layout.shared {
            initiator.sleep_begins(core);
            // It may have been accepted, and answered, before anybody else could see that it waits here.
            self.resume(core);
        } else if initiator.is_reliable && notify::request(initiator.inbound()) {
            core.stats.wakes_wanted.increment();
            // What it gave before is not announced.
            self.resume(core);
        }
    }

    /// Tells the target what was published since the last time.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if let Way::Host(initiator) = &mut self.way {
            initiator.ring();
        }
    }

    /// How long the target wants to be left alone if it has no receive.
    fn rnr_timer(&self) -> Duration {
        let code = self.way.initiator().map_or(0, |initiator| initiator.inbound().load(RNR_TIMER, Relaxed));
        RnrTimer(code as u8).duration()
    }

    /// Returns whether the service thread hears of it now: what came before that, the caller must look for.
    #[cold]
    pub(super) fn begin_wait(&mut self, core: &QpCore, wait: Wait) -> bool {
        let after = match wait {
            Wait::Receiver => self.timers.rnr_retries.map(|retries| self.rnr_timer() * retries.into()),
            Wait::Answer if !self.is_reliable() => Some(TARGET_WAIT_MIN),
            Wait::Peer | Wait::Target | Wait::Answer => self.timers.transport,
        };
        self.wait_limit = Some(WaitLimit::new(wait, after));
        core.stats.waits.increment();
        core.set_send_waits(true);
        let is_new = core.retry_later();
        // Only who still seeks the way takes it.
        let is_ready = matches!(self.way, Way::Sought(_)) && core.peer_was_ready();
        // Who waits for the same again and again is recorded once.
        if self.recorded.replace(wait) != Some(wait) || is_new {
            core.stats.record(Event::Wait as u64, wait as u64);
        }
        is_new || is_ready
    }

    #[cold]
    pub(super) fn fail(&mut self, core: &QpCore, wr_id: u64, opcode: WrOpcode, status: WcStatus) {
        self.ring();
        core.fail_send(wr_id, opcode, status);
        if self.is_reliable() {
            core.fail(None);
        } else {
            // Receives go on (IBA 10.3.1).
            core.make_step(state::Step::SendFailed);
        }
        self.flush(core);
    }

    /// Gives up the oldest request: no answer that still comes is for anything later.
    pub(super) fn abandon(&mut self) {
        self.wait_limit = None;
        match &mut self.way {
            Way::Host(initiator) => initiator.abandon(),
            Way::Sought(sought) => *sought = Sought::default(),
        }
    }

    /// Ends everything that waits.
    #[cold]
    fn flush(&mut self, core: &QpCore) {
        self.drain = None;
        if let Way::Host(initiator) = &mut self.way {
            initiator.in_flight = InFlight::default();
        }
        self.abandon();
        while let Some((wr_id, opcode, _)) = self.waiting.pop() {
            core.fail_send(wr_id, opcode, WcStatus::WR_FLUSH_ERR);
        }
        core.set_send_waits(false);
    }

    /// Begins anew: drops everything that waits, without completions, and the way to the peer (RESET, destroy).
    pub(crate) fn renew(&mut self, core: &QpCore) {
        *self = Self::new(core.transport);
        core.forget_completions();
        core.set_send_waits(false);
    }
}
