//! The stream as an endpoint: the driver iteration, and going to sleep.

use std::sync::Arc;
use std::time::Duration;

use farcall_link::{Completed, PostRefused};
use farcall_verbs::{Endpoint, Nanos, Notify, Progress, Result, WaitSet, WakeProbe, Wc};

use super::RingStream;
use crate::error::Broken;
use crate::nap::Nap;
use crate::words::{CONSUMED, IMM_OFFER, PROMISE, TURN, WAKES_TAKEN, WISH};

/// Driver iterations between two polls of the completion queue while no wake-up is expected.
const TURNS_PER_POLL: u32 = 16;
/// Maximum timeout of a sleep before the peer has acknowledged the wake request.
const NAP_MAX: Duration = Duration::from_secs(10);

impl RingStream {
    /// Polls the completion queue. Returns whether the application may have work now.
    pub(super) fn poll_completions(&mut self) -> bool {
        let mut any = false;
        loop {
            let got = match self.cq.poll(&mut self.wcs) {
                Ok(got) => got,
                Err(error) => {
                    self.break_off(Broken::Verbs(error.to_string()));
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
                // Deferred to here because `break_off` polls the remaining completions into `self.wcs`.
                self.break_off(why);
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
                    self.inlet.woken.woken_in_vain();
                }
                let imm = imm.unwrap_or(0);
                self.inlet.woken_by(imm).map_err(Broken::Protocol)?;
                if imm & IMM_OFFER != 0 {
                    self.take_offer()?;
                }
                Ok(true)
            }
            Completed::Failed(status) => Err(Broken::Completion(status)),
        }
    }

    /// Reads the peer's control words. Returns whether they contain a change.
    pub(super) fn hear(&mut self) -> bool {
        let (heard, ended) = match self.inlet.hear() {
            Ok(heard) => heard,
            Err(impossible) => {
                self.break_off(Broken::Protocol(impossible));
                return true;
            }
        };
        let outlet = &mut self.outlet;
        let mut news = ended;
        if heard.consumed > outlet.consumed {
            if heard.consumed > outlet.written {
                let why = format!("{} bytes read of {}", heard.consumed, outlet.written);
                self.break_off(Broken::Protocol(why));
                return true;
            }
            outlet.consumed = heard.consumed;
            news = true;
        }
        if heard.wakes_taken > outlet.waker.taken {
            if heard.wakes_taken > outlet.waker.sent {
                let why = format!("{} wake-ups taken of {}", heard.wakes_taken, outlet.waker.sent);
                self.break_off(Broken::Protocol(why));
                return true;
            }
            outlet.waker.taken = heard.wakes_taken;
            news = true;
        }
        if let Some(wish) = heard.wish {
            news |= !std::mem::replace(&mut outlet.is_ready, true);
            outlet.waker.hear(wish);
        }
        news
    }

    /// Sends the control words that are due: acknowledgement, credit, wake request, end. Those for which the send
    /// queue has no space are sent in a later iteration.
    #[inline]
    pub(super) fn speak(&mut self) {
        if self.broken.is_some() || !self.outlet.is_ready {
            return;
        }
        if let Err(error) = self.try_speak() {
            self.refused(error);
        }
    }

    #[inline]
    fn try_speak(&mut self) -> std::result::Result<(), PostRefused> {
        self.say_offer()?;
        let Self { connection, outlet, inlet, counters, .. } = self;
        if let Some(turn) = outlet.turn
            && connection.room() > 0
        {
            outlet.say(connection, TURN, turn.encode())?;
            outlet.turn = None;
        }
        if let Some(promise) = outlet.waker.due(outlet.written)
            && connection.room() > 0
        {
            outlet.say(connection, PROMISE, promise.encode())?;
            outlet.waker.said();
        }
        if inlet.owes_credit() && connection.room() > 0 {
            outlet.say(connection, CONSUMED, inlet.read)?;
            inlet.credited = inlet.read;
            counters.credits += 1;
        }
        if inlet.owes_wakes() && connection.room() > 0 {
            outlet.say(connection, WAKES_TAKEN, inlet.wakes_taken)?;
            inlet.wakes_credited = inlet.wakes_taken;
        }
        if let Some(wish) = inlet.woken.due()
            && connection.room() > 0
        {
            outlet.say(connection, WISH, wish.encode())?;
            inlet.woken.said();
            counters.wishes += 1;
        }
        if outlet.is_finished && !outlet.has_said_end() && connection.room() > 0 {
            outlet.say_end(connection)?;
        }
        Ok(())
    }

    /// Sends credit, if it is due, after the application has read.
    #[inline]
    pub(super) fn give_credit(&mut self) {
        if self.inlet.owes_credit() {
            self.speak();
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
        self.outlet.is_finished || self.outlet.room(&self.connection) == 0
    }
}

impl Endpoint for RingStream {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        self.now = now;
        let mut any = false;
        if self.inlet.woken.is_asked_for()
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
        match self.inlet.look() {
            Ok(more) => any |= more,
            Err(impossible) => self.break_off(Broken::Protocol(impossible)),
        }
        any |= self.hear();
        self.grow();
        self.speak();
        if any {
            (self.is_armed, self.is_covered) = (false, false);
            self.nap = Nap::default();
            return Progress::Again;
        }
        if self.is_armed && !self.is_covered && !self.inlet.may_sleep() {
            // The wake request is not acknowledged yet: bytes may arrive without a wake-up.
            return Progress::Idle { until: Some(self.nap.until) };
        }
        Progress::Idle { until: if self.is_armed { self.shrink(now) } else { None } }
    }

    fn arm(&mut self) -> Result<()> {
        self.inlet.woken.wants_sleep();
        self.is_covered = false;
        self.speak();
        if !self.inlet.may_sleep() {
            self.nap.begin(self.now, NAP_MAX);
        }
        self.arm_completions()
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        self.probe.clone().map(|probe| probe as _)
    }

    fn arm_delegated(&mut self) -> Result<()> {
        let Some(probe) = &self.probe else { return self.arm() };
        probe.know();
        self.inlet.woken.is_covered();
        self.is_covered = true;
        self.speak();
        self.arm_completions()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
    }
}
