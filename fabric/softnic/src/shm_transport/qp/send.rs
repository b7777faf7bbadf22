//! Send side of a queue pair. Requests are executed in `post_send` where possible. Requests that must wait (no receive
//! posted, ring full, peer not ready) stay in order in a queue, and the next post or poll continues them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use farcall_shm::ring::RNR_TIMER;
use farcall_shm::{PendingWork, credit_request};
use farcall_verbs::{AsyncEventKind, QpState, RnrTimer, WcStatus, WrOpcode};

use super::drain::Drain;
use super::in_flight::InFlight;
use super::initiator::ConnectAttempt;
use super::peer_connection::PeerConnection;
use super::request::{ExecuteOutcome, WaitReason};
use super::wait_queue::{TARGET_WAIT_MIN, Timers, WaitLimit, WaitQueue};
use super::{Connected, QpCore};
use crate::shm_transport::flight::Event;
use crate::shm_transport::state;

/// State of the send side. The fields that every message uses come first: see [`super::QueuePair`].
#[repr(C)]
pub(crate) struct SendSide {
    pub(crate) waiting: WaitQueue,
    pub(super) transport: Connected,
    pub(crate) connection: PeerConnection,
    pub(crate) timers: Timers,
    drain: Option<Drain>,
    /// Wait reason of the oldest waiting request, and its timeout.
    pub(super) wait_limit: Option<WaitLimit>,
    /// Wait reason that was last recorded by the flight recorder.
    recorded: Option<WaitReason>,
    /// Time at which a request last timed out waiting for the target's process, over UC.
    pub(super) reply_wait_since: Option<Instant>,
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
            connection: PeerConnection::default(),
            timers: Timers { transport: None, rnr_retries: None },
            drain: None,
            wait_limit: None,
            recorded: None,
            reply_wait_since: None,
        }
    }

    /// Returns whether requests may wait for the target, and the target is notified of errors.
    pub(super) fn is_reliable(&self) -> bool {
        self.transport == Connected::Reliable
    }

    /// Returns the number of requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Records that the oldest request was sent to a target that has not accepted it yet.
    pub(super) fn set_published(&mut self) {
        if let PeerConnection::Established(initiator) = &mut self.connection {
            initiator.in_flight.count = 1;
        }
    }

    fn is_in_flight(&self) -> bool {
        self.connection.initiator().is_some_and(|initiator| initiator.in_flight.count > 0)
    }

    /// Continues requests that wait.
    pub(crate) fn resume(&mut self, core: &QpCore) {
        while let Some(oldest) = self.waiting.front() {
            if !matches!(core.state(), QpState::Rts | QpState::Sqd) {
                self.flush(core);
                break;
            }
            if self.drain.is_some_and(|drain| drain.left() == 0) {
                break;
            }
            let len_bytes = oldest.len_bytes();
            let status = match self.retry_oldest(core) {
                ExecuteOutcome::Done => WcStatus::SUCCESS,
                ExecuteOutcome::Failed(status) => status,
                ExecuteOutcome::Published => {
                    self.set_published();
                    continue;
                }
                ExecuteOutcome::Wait(wait) => match &mut self.wait_limit {
                    Some(wait_limit) if wait_limit.is_for(wait) => {
                        if !wait_limit.has_expired(wait) {
                            break;
                        }
                        if !self.is_reliable() {
                            // Neither this request nor, for a while, later ones wait any longer.
                            self.reply_wait_since = Some(Instant::now());
                            continue;
                        }
                        if self.connection.initiator_mut().is_some_and(|initiator| !initiator.withdraw()) {
                            continue;
                        }
                        wait.failure_status()
                    }
                    // A peer that becomes ready but has no receive (or the reverse) starts a new timeout.
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
            self.drain.iter_mut().for_each(Drain::on_completed);
            self.raise_drained(core);
        }
        self.leave(core);
    }

    /// Executes the oldest request again, or checks whether the target has accepted it.
    fn retry_oldest(&mut self, core: &QpCore) -> ExecuteOutcome {
        if self.is_in_flight()
            && let PeerConnection::Established(initiator) = &mut self.connection
        {
            return initiator.confirm(core, &self.waiting);
        }
        // `execute` uses everything but `waiting`, so the elements are taken out for the duration of the call.
        let sges = self.waiting.take_sges();
        let Some(queued) = self.waiting.front() else { return ExecuteOutcome::Done };
        let target = queued.target;
        let request = queued.request(&target, &sges);
        // SAFETY: by the contract of `RawQp::post_send` the request's memory is valid until its completion is polled.
        // Inline data is in the queue's slot, which is not changed during the call.
        let outcome = unsafe { self.execute(core, &request) };
        let outcome = self.final_outcome(core, &request, outcome);
        self.waiting.put_sges(sges);
        if self.connection.initiator_mut().is_some_and(|initiator| initiator.proxied_request.take_progress())
        {
            // Each chunk is allowed the full waiting time.
            self.wait_limit = None;
        }
        outcome
    }

    /// Finishes a pass over the waiting requests.
    fn leave(&mut self, core: &QpCore) {
        self.publish_more(core);
        self.ring();
        if let PeerConnection::Established(initiator) = &mut self.connection {
            let waited = self.wait_limit.as_ref().map_or(Duration::ZERO, WaitLimit::waited);
            initiator.on_empty_poll(core, waited);
        }
        if self.waiting.len() == 0 {
            core.set_send_waits(false);
            if let Some(initiator) = self.connection.initiator().filter(|initiator| !initiator.layout.shared)
            {
                credit_request::cancel(initiator.inbound());
            }
        }
    }

    /// Publishes small messages after the one in flight, as many as fit.
    pub(super) fn publish_more(&mut self, core: &QpCore) {
        if let PeerConnection::Established(initiator) = &mut self.connection {
            let limit = self.drain.map_or(usize::MAX, Drain::left);
            initiator.publish_more(core, &self.waiting, limit);
        }
    }

    pub(crate) fn begin_drain(&mut self, core: &QpCore, notify: bool) {
        self.drain = Some(Drain::new(self.waiting.len(), notify));
        self.raise_drained(core);
    }

    fn raise_drained(&mut self, core: &QpCore) {
        if self.drain.as_mut().is_some_and(Drain::take_event) {
            core.raise(AsyncEventKind::SqDrained);
        }
    }

    /// Called on the return to RTS: executes the requests posted in the meantime.
    pub(crate) fn end_drain(&mut self, core: &QpCore) {
        self.drain = None;
        self.resume(core);
    }

    /// Returns whether only a polling thread can continue the waiting requests: they wait for a receive that the
    /// target's application posts. Service threads send requests to targets that match shared receives, and to targets
    /// that are not ready.
    pub(crate) fn needs_polls_only(&self) -> bool {
        let is_shared = self.connection.initiator().is_none_or(|initiator| initiator.layout.shared);
        let waits_for = self.wait_limit.as_ref().map(|wait_limit| wait_limit.of);
        self.waiting.len() == 0 || (!is_shared && waits_for == Some(WaitReason::Receiver))
    }

    /// Like `resume`, for an application thread that sleeps: from now on the target notifies of credit.
    #[cold]
    pub(crate) fn request_and_resume(&mut self, core: &QpCore) {
        let PeerConnection::Established(initiator) = &mut self.connection else { return };
        if initiator.layout.shared {
            initiator.on_app_sleep(core);
            // The message may have been accepted before another thread could see that it waits here.
            self.resume(core);
        } else if initiator.is_reliable && credit_request::request_credit(initiator.inbound()) {
            core.stats.wakes_wanted.increment();
            // Credit given before the request is not announced.
            self.resume(core);
        }
    }

    /// Announces the records published since the last call to the target.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if let PeerConnection::Established(initiator) = &mut self.connection {
            initiator.ring();
        }
    }

    /// Returns the RNR timer that the target has set.
    fn rnr_timer(&self) -> Duration {
        let code =
            self.connection.initiator().map_or(0, |initiator| initiator.inbound().load(RNR_TIMER, Relaxed));
        RnrTimer(code as u8).duration()
    }

    /// Begins a wait. Returns whether the service thread was informed only now; the caller must then check once more
    /// for progress made before.
    #[cold]
    pub(super) fn begin_wait(&mut self, core: &QpCore, wait: WaitReason) -> bool {
        let after = match wait {
            WaitReason::Receiver => self.timers.rnr_retries.map(|retries| self.rnr_timer() * retries.into()),
            WaitReason::PeerReply if !self.is_reliable() => Some(TARGET_WAIT_MIN),
            WaitReason::Peer | WaitReason::Target | WaitReason::PeerReply => self.timers.transport,
        };
        self.wait_limit = Some(WaitLimit::new(wait, after));
        core.stats.waits.increment();
        core.set_send_waits(true);
        let is_new = core.schedule_service();
        // Only a queue pair without a connection consumes the readiness.
        let is_ready = matches!(self.connection, PeerConnection::Connecting(_)) && core.peer_was_ready();
        // Repeated waits for the same reason are recorded once.
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
            // Receives are not affected (IBA 10.3.1).
            core.apply_event(state::StateEvent::SendFailed);
        }
        self.flush(core);
    }

    /// Abandons the oldest request. A late reply is not taken for that of a later request.
    pub(super) fn abandon(&mut self) {
        self.wait_limit = None;
        match &mut self.connection {
            PeerConnection::Established(initiator) => initiator.abandon(),
            PeerConnection::Connecting(sought) => *sought = ConnectAttempt::default(),
        }
    }

    /// Flushes all waiting requests.
    #[cold]
    fn flush(&mut self, core: &QpCore) {
        self.drain = None;
        if let PeerConnection::Established(initiator) = &mut self.connection {
            initiator.in_flight = InFlight::default();
        }
        self.abandon();
        while let Some((wr_id, opcode, _)) = self.waiting.pop() {
            core.fail_send(wr_id, opcode, WcStatus::WR_FLUSH_ERR);
        }
        core.set_send_waits(false);
    }

    /// Resets the send side: drops all waiting requests without completions, and the connection to the peer (RESET,
    /// destroy).
    pub(crate) fn renew(&mut self, core: &QpCore) {
        *self = Self::new(core.transport);
        core.discard_completions();
        core.set_send_waits(false);
    }
}
