//! The stream as an endpoint: the driver iteration, and going to sleep.

use std::sync::Arc;
use std::time::Duration;

use farcall_link::{Completed, PostRefused};
use farcall_verbs::{Endpoint, Nanos, Notify, Progress, Result, WaitSet, WakeProbe, Wc, with_sources};

use super::RingStream;
use crate::backoff_sleep::BackoffSleep;
use crate::error::Broken;
use crate::words::{CONSUMED, IMM_OFFER, TURN, WAKE_ACK, WAKE_REQUEST, WAKES_TAKEN};

/// Driver iterations between two polls of the completion queue while no wake-up is expected.
const TURNS_PER_POLL: u32 = 16;
/// Maximum timeout of a sleep before the peer has acknowledged the wake request.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

impl RingStream {
    /// Polls the completion queue. Returns whether the application may have work now.
    pub(super) fn poll_completions(&mut self) -> bool {
        let mut any = false;
        loop {
            let got = match self.cq.poll(&mut self.wcs) {
                Ok(got) => got,
                Err(error) => {
                    self.mark_broken(Broken::Verbs(with_sources(&error)));
                    return true;
                }
            };
            let mut broken = None;
            for at in 0..got {
                let wc = self.wcs[at];
                match self.completed(&wc) {
                    Ok(news) => any |= news,
                    Err(why) => broken = broken.or(Some(why)),
                }
            }
            if let Some(why) = broken {
                // Deferred to here because `mark_broken` polls the remaining completions into `self.wcs`.
                self.mark_broken(why);
                return true;
            }
            if got < self.wcs.len() {
                return any;
            }
        }
    }

    /// Handles a completion. Returns whether the application may have work now, or the reason why the stream broke.
    fn completed(&mut self, wc: &Wc) -> std::result::Result<bool, Broken> {
        match self.connection.complete(wc) {
            Completed::Send { .. } | Completed::Flushed => Ok(self.broken.is_some()),
            Completed::Received { imm, .. } => {
                // A failed post means that the queue pair is in the error state, which the flushed receives report.
                let _ = self.connection.post_empty_receives(1);
                if !self.is_armed {
                    self.recv_half.wake_receiver.on_spurious_wake();
                }
                let imm = imm.unwrap_or(0);
                self.recv_half.on_wake(imm).map_err(Broken::Protocol)?;
                if imm & IMM_OFFER != 0 {
                    self.take_offer()?;
                }
                Ok(true)
            }
            Completed::Failed(status) => Err(Broken::Completion(status)),
        }
    }

    /// Reads the peer's control words. Returns whether they contain a change.
    pub(super) fn read_words(&mut self) -> bool {
        let (update, ended) = match self.recv_half.read_words() {
            Ok(update) => update,
            Err(violation) => {
                self.mark_broken(Broken::Protocol(violation));
                return true;
            }
        };
        let send_half = &mut self.send_half;
        let mut news = ended;
        if update.consumed > send_half.consumed {
            if update.consumed > send_half.written {
                let why = format!("{} bytes read of {}", update.consumed, send_half.written);
                self.mark_broken(Broken::Protocol(why));
                return true;
            }
            send_half.consumed = update.consumed;
            news = true;
        }
        if update.wakes_taken > send_half.wake_sender.taken {
            if update.wakes_taken > send_half.wake_sender.sent {
                let why = format!("{} wake-ups taken of {}", update.wakes_taken, send_half.wake_sender.sent);
                self.mark_broken(Broken::Protocol(why));
                return true;
            }
            send_half.wake_sender.taken = update.wakes_taken;
            news = true;
        }
        if let Some(request) = update.wake_request {
            news |= !std::mem::replace(&mut send_half.is_ready, true);
            send_half.wake_sender.on_request(request);
        }
        news
    }

    /// Sends the control words that are due: acknowledgement, credit, wake request, end. Those for which the send
    /// queue has no space are sent in a later iteration.
    #[inline]
    pub(super) fn send_words(&mut self) {
        if self.broken.is_some() || !self.send_half.is_ready {
            return;
        }
        if let Err(error) = self.try_send_words() {
            self.refused(error);
        }
    }

    #[inline]
    fn try_send_words(&mut self) -> std::result::Result<(), PostRefused> {
        self.send_offer()?;
        let Self { connection, send_half, recv_half, counters, .. } = self;
        if let Some(turn) = send_half.turn
            && connection.room() > 0
        {
            send_half.write_word(connection, TURN, turn.encode())?;
            send_half.turn = None;
        }
        if let Some(ack) = send_half.wake_sender.due(send_half.written)
            && connection.room() > 0
        {
            send_half.write_word(connection, WAKE_ACK, ack.encode())?;
            send_half.wake_sender.on_sent();
        }
        if recv_half.credit_due() && connection.room() > 0 {
            send_half.write_word(connection, CONSUMED, recv_half.read)?;
            recv_half.credited = recv_half.read;
            counters.credits += 1;
        }
        if recv_half.wakes_due() && connection.room() > 0 {
            send_half.write_word(connection, WAKES_TAKEN, recv_half.wakes_taken)?;
            recv_half.wakes_credited = recv_half.wakes_taken;
        }
        if let Some(request) = recv_half.wake_receiver.due()
            && connection.room() > 0
        {
            send_half.write_word(connection, WAKE_REQUEST, request.encode())?;
            recv_half.wake_receiver.on_sent();
            counters.wishes += 1;
        }
        if send_half.is_finished && !send_half.end_sent() && connection.room() > 0 {
            send_half.send_end(connection)?;
        }
        Ok(())
    }

    /// Sends credit, if it is due, after the application has read.
    #[inline]
    pub(super) fn send_credit(&mut self) {
        if self.recv_half.credit_due() {
            self.send_words();
        }
    }

    /// Arms the completion queue. Offered rings and failures are reported by completions alone.
    fn arm_completions(&mut self) -> Result<()> {
        while let Ok(Some(_)) = self.channel.poll_cq_event() {}
        self.is_armed = true;
        let is_draining = self.broken.is_some();
        let notify = if is_draining || self.waits_for_sends() { Notify::Any } else { Notify::Solicited };
        self.cq.req_notify(notify)
    }

    /// Returns whether this end waits for completions of its own sends, which are not solicited events.
    fn waits_for_sends(&self) -> bool {
        self.send_half.is_finished || self.send_half.room(&self.connection) == 0
    }
}

impl Endpoint for RingStream {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let mut any = false;
        if self.recv_half.wake_receiver.requests_wakes()
            || self.is_armed
            || self.turns_to_poll == 0
            || self.broken.is_some()
        {
            self.turns_to_poll = TURNS_PER_POLL;
            any |= self.poll_completions();
        } else {
            self.turns_to_poll -= 1;
        }
        if self.broken.is_some() {
            return if any { Progress::Again } else { Progress::IDLE };
        }
        match self.recv_half.poll() {
            Ok(more) => any |= more,
            Err(violation) => self.mark_broken(Broken::Protocol(violation)),
        }
        any |= self.read_words();
        self.grow();
        self.send_words();
        if any {
            (self.is_armed, self.is_delegated) = (false, false);
            self.backoff = BackoffSleep::default();
            return Progress::Again;
        }
        if self.is_armed && !self.is_delegated && !self.recv_half.may_sleep() {
            // The wake request is not acknowledged yet: bytes may arrive without a wake-up.
            return Progress::Idle { until: Some(self.backoff.until) };
        }
        Progress::Idle { until: if self.is_armed { self.shrink(now) } else { None } }
    }

    fn arm(&mut self) -> Result<()> {
        self.recv_half.wake_receiver.on_wants_sleep();
        self.is_delegated = false;
        self.send_words();
        if !self.recv_half.may_sleep() {
            self.backoff.begin(self.now, BACKOFF_MAX);
        }
        self.arm_completions()
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        self.probe.clone().map(|probe| probe as _)
    }

    fn arm_delegated(&mut self) -> Result<()> {
        let Some(probe) = &self.probe else { return self.arm() };
        probe.record();
        self.recv_half.wake_receiver.on_delegated();
        self.is_delegated = true;
        self.send_words();
        self.arm_completions()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
    }
}
