//! Posting of send requests: `post_send` executes them, or queues them if they must wait.

use farcall_verbs::{PostError, QpState, Result, SendRules, SendWr, WcStatus};

use super::peer_connection::PeerConnection;
use super::request::{ExecuteOutcome, Request, WaitReason};
use super::send::SendSide;
use super::unreliable::end_of_dropped;
use super::wait_queue::TARGET_WAIT_MIN;
use super::{Connected, QpCore};

impl SendSide {
    /// Posts requests in order until one violates the rules, and announces them once.
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
            // SAFETY: by the contract of this function the requests' memory is valid, as `post_some` requires.
            result = unsafe { self.post_some(core, &rules, wrs, &mut posted) };
        }
        self.ring();
        result.map_err(|source| PostError::new(posted, source))
    }

    /// Posts the requests that can be executed immediately, and the next one after them.
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
        // The connection is checked once for the entire batch.
        if let (0, PeerConnection::Established(initiator)) = (self.waiting.len(), &mut self.connection) {
            while let Some(wr) = wrs.get(*posted) {
                // SAFETY: by the contract of this function the request's memory is valid, and no request waits, as
                // `post_repeated` requires.
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
                // SAFETY: by the contract of this function the request's memory is valid, as `execute` requires.
                match unsafe { initiator.execute(core, &request) } {
                    ExecuteOutcome::Done => core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, len_bytes),
                    outcome => {
                        // SAFETY: by the contract of this function the request's memory is valid, as `conclude`
                        // requires.
                        unsafe { self.conclude(core, wr, &request, outcome) };
                        return Ok(());
                    }
                }
            }
        }
        let Some(wr) = wrs.get(*posted) else { return Ok(()) };
        let len_bytes = rules.check(wr, core.unpolled() + self.waiting())?;
        *posted += 1;
        // SAFETY: by the contract of this function the request's memory is valid, as `post_behind` requires.
        unsafe { self.post_behind(core, wr, len_bytes) };
        Ok(())
    }

    /// Posts one request that cannot be executed immediately: other requests wait before it, there is no connection
    /// yet, or the state is not RTS.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[cold]
    unsafe fn post_behind(&mut self, core: &QpCore, wr: &SendWr<'_>, len_bytes: u64) {
        match core.state() {
            QpState::Rts if self.waiting.len() == 0 => {
                let request = Request::of(wr, len_bytes);
                // SAFETY: by the contract of this function the request's memory is valid, as `execute` and `conclude`
                // require.
                unsafe {
                    let outcome = self.execute(core, &request);
                    self.conclude(core, wr, &request, outcome);
                }
            }
            // SAFETY: by the contract of this function the request's memory is valid, as `enqueue` requires.
            QpState::Rts | QpState::Sqd => unsafe { self.enqueue(core, wr) },
            _ => core.fail_send(wr.wr_id, wr.opcode, WcStatus::WR_FLUSH_ERR),
        }
    }

    /// Completes a request after its first execution, or queues it.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[cold]
    unsafe fn conclude(
        &mut self,
        core: &QpCore,
        wr: &SendWr<'_>,
        request: &Request<'_>,
        outcome: ExecuteOutcome,
    ) {
        let is_new = match self.final_outcome(core, request, outcome) {
            ExecuteOutcome::Done => {
                return core.complete_send(wr.wr_id, wr.opcode, wr.send_flags, request.len_bytes);
            }
            ExecuteOutcome::Failed(status) => return self.fail(core, wr.wr_id, wr.opcode, status),
            ExecuteOutcome::Wait(wait) => self.begin_wait(core, wait),
            ExecuteOutcome::Published => {
                self.set_published();
                self.begin_wait(core, WaitReason::Target)
            }
        };
        // SAFETY: by the contract of this function the request's memory is valid, as `enqueue` requires.
        unsafe { self.enqueue(core, wr) };
        if is_new {
            self.resume(core);
        }
    }

    /// Queues a request.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    unsafe fn enqueue(&mut self, core: &QpCore, wr: &SendWr<'_>) {
        // SAFETY: by the contract of this function inline elements are readable.
        unsafe { self.waiting.push(wr, core.cap.max_send_wr as usize) };
        self.publish_more(core);
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    pub(super) unsafe fn execute(&mut self, core: &QpCore, request: &Request<'_>) -> ExecuteOutcome {
        match self.connection.poll_connect(core) {
            Ok(None) => {}
            Ok(Some(wait)) => return ExecuteOutcome::Wait(wait),
            Err(_) => return ExecuteOutcome::Failed(WcStatus::RETRY_EXC_ERR),
        }
        match &mut self.connection {
            // SAFETY: by the contract of this function the request's memory is valid, as `execute` requires.
            PeerConnection::Established(initiator) => unsafe { initiator.execute(core, request) },
            PeerConnection::Connecting(_) => ExecuteOutcome::Wait(WaitReason::Peer),
        }
    }

    /// Returns the final result of an execution. Over UC a request that could not be executed is dropped, unless it
    /// only lacks a reply of the target's process: a device would reply immediately, while a process must be scheduled
    /// first.
    #[cold]
    pub(super) fn final_outcome(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        outcome: ExecuteOutcome,
    ) -> ExecuteOutcome {
        let is_waiting_for_reply =
            || self.reply_wait_since.is_some_and(|since| since.elapsed() < TARGET_WAIT_MIN);
        match (outcome, self.transport) {
            (ExecuteOutcome::Done, _) => ExecuteOutcome::Done,
            (outcome, Connected::Reliable) => outcome,
            (ExecuteOutcome::Wait(WaitReason::PeerReply), Connected::Unreliable)
                if !is_waiting_for_reply() =>
            {
                ExecuteOutcome::Wait(WaitReason::PeerReply)
            }
            (_, Connected::Unreliable) => {
                if self
                    .connection
                    .initiator()
                    .is_some_and(|initiator| initiator.proxied_request.is_in_progress())
                {
                    self.abandon();
                }
                match end_of_dropped(core, request) {
                    WcStatus::SUCCESS => ExecuteOutcome::Done,
                    fault => ExecuteOutcome::Failed(fault),
                }
            }
        }
    }
}
