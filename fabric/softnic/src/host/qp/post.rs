//! What `post_send` does with requests: executes them, or sets them aside.

use farcall_verbs::{PostError, QpState, Result, SendRules, SendWr, WcStatus};

use super::request::{Request, Step};
use super::send::SendSide;
use super::unreliable::end_of_dropped;
use super::wait_queue::{TARGET_WAIT_MIN, Wait};
use super::way::Way;
use super::{Connected, QpCore};

impl SendSide {
    /// Posts requests in order, as far as they keep to the rules, and announces them once.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(crate) unsafe fn post_batch(&mut self, core: &QpCore, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.waiting.len() > 0 {
            self.resume(core);
        }
        let (rules, mut posted, mut result) = (core.send_rules(), 0, Ok(()));
        while posted < wrs.len() && result.is_ok() {
            // SAFETY: the caller's promise.
            result = unsafe { self.post_some(core, &rules, wrs, &mut posted) };
        }
        self.ring();
        result.map_err(|source| PostError::new(posted, source))
    }

    /// Posts what can be executed at once, and one more.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    unsafe fn post_some(
        &mut self,
        core: &QpCore,
        rules: &SendRules,
        wrs: &[SendWr<'_>],
        posted: &mut usize,
    ) -> Result<()> {
        // The way is looked at once for all of them.
        if let (0, Way::Host(initiator)) = (self.waiting.len(), &mut self.way) {
            while let Some(wr) = wrs.get(*posted) {
                // SAFETY: the caller's promise.
                if unsafe { initiator.post_repeated(core, wr) } {
                    *posted += 1;
                    continue;
                }
                let len_bytes = rules.check(wr, core.unpolled())?;
                if core.state() != QpState::Rts {
                    break;
                }
                *posted += 1;
                let request = Request::of(wr, len_bytes);
                // SAFETY: the caller's promise.
                match unsafe { initiator.execute(core, &request) } {
                    Step::Done => core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, len_bytes),
                    step => {
                        // SAFETY: as above.
                        unsafe { self.settle(core, wr, &request, step) };
                        return Ok(());
                    }
                }
            }
        }
        let Some(wr) = wrs.get(*posted) else { return Ok(()) };
        let len_bytes = rules.check(wr, core.unpolled() + self.waiting())?;
        *posted += 1;
        // SAFETY: the caller's promise.
        unsafe { self.post_behind(core, wr, len_bytes) };
        Ok(())
    }

    /// Takes one request that cannot be executed at once: others wait before it, the way is not found, or the state
    /// is not RTS.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[cold]
    unsafe fn post_behind(&mut self, core: &QpCore, wr: &SendWr<'_>, len_bytes: u64) {
        match core.state() {
            QpState::Rts if self.waiting.len() == 0 => {
                let request = Request::of(wr, len_bytes);
                // SAFETY: the caller's promise.
                unsafe {
                    let step = self.execute(core, &request);
                    self.settle(core, wr, &request, step);
                }
            }
            // SAFETY: the caller's promise.
            QpState::Rts | QpState::Sqd => unsafe { self.park(core, wr) },
            _ => core.fail_send(wr.wr_id, wr.opcode, WcStatus::WR_FLUSH_ERR),
        }
    }

    /// Ends a request that was executed for the first time, or sets it aside.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[cold]
    unsafe fn settle(&mut self, core: &QpCore, wr: &SendWr<'_>, request: &Request<'_>, step: Step) {
        let is_new = match self.judge(core, request, step) {
            Step::Done => {
                return core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, request.len_bytes);
            }
            Step::Failed(status) => return self.fail(core, wr.wr_id, wr.opcode, status),
            Step::Wait(wait) => self.begin_wait(core, wait),
            Step::Published => {
                self.set_published();
                self.begin_wait(core, Wait::Target)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.park(core, wr) };
        if is_new {
            self.resume(core);
        }
    }

    /// Keeps a request for later.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    unsafe fn park(&mut self, core: &QpCore, wr: &SendWr<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.waiting.push(wr, core.cap.max_send_wr as usize) };
        self.publish_more(core);
    }

    /// # Safety
    /// The request's memory is the poster's promise.
    pub(super) unsafe fn execute(&mut self, core: &QpCore, request: &Request<'_>) -> Step {
        match self.way.find(core) {
            Ok(None) => {}
            Ok(Some(wait)) => return Step::Wait(wait),
            Err(_) => return Step::Failed(WcStatus::RETRY_EXC_ERR),
        }
        match &mut self.way {
            // SAFETY: the caller's promise.
            Way::Host(initiator) => unsafe { initiator.execute(core, request) },
            Way::Sought(_) => Step::Wait(Wait::Peer),
        }
    }

    /// What becomes of a request that could not be executed. Over UC it is dropped, unless all that is missing is an
    /// answer of the target's process: a device would give it at once, while a process must get a processor first.
    #[cold]
    pub(super) fn judge(&mut self, core: &QpCore, request: &Request<'_>, step: Step) -> Step {
        let is_given_up = || self.unanswered_since.is_some_and(|since| since.elapsed() < TARGET_WAIT_MIN);
        match (step, self.transport) {
            (Step::Done, _) => Step::Done,
            (step, Connected::Reliable) => step,
            (Step::Wait(Wait::Answer), Connected::Unreliable) if !is_given_up() => Step::Wait(Wait::Answer),
            (_, Connected::Unreliable) => {
                if self.way.initiator().is_some_and(|initiator| initiator.owner_request.is_under_way()) {
                    self.abandon();
                }
                match end_of_dropped(core, request) {
                    WcStatus::SUCCESS => Step::Done,
                    fault => Step::Failed(fault),
                }
            }
        }
    }
}
