//! The client as an endpoint: its turn, and how it and the server wake each other.

use farcall_link::PeerError;
use farcall_verbs::{Endpoint, Nanos, Next, Notify, Result, WaitSet};
use std::time::Duration;

use super::{Caller, Path};
use crate::error::Broken;
use crate::wire::{Imm, Mode};

/// Turns between looks at the completion queue when nothing in it is waited for.
const TURNS_PER_POLL: u32 = 16;
/// The longest pause between wake-ups of a server that does not answer.
const KICK_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Wake-ups without a response beyond one for each message: the server keeps receives for as many.
const KICKS_MAX: u32 = 12;

impl<P: Path> Caller<P> {
    /// The server says that it sleeps: wakes it, unless that was done since the last message was sent.
    pub(super) fn kick_sleeper(&mut self) {
        if self.kicks.covered != self.frames.next {
            self.kick(Imm::Kick);
        }
    }

    fn kick(&mut self, imm: Imm) {
        let Some(link) = self.link.as_mut() else { return };
        if self.kicks.unanswered >= KICKS_MAX {
            return;
        }
        match link.peer.kick(&link.welcome.grants.inbox, imm.encode()) {
            Ok(_) => {
                self.kicks.unanswered += 1;
                self.kicks.covered = self.frames.next;
                self.counters.kicks.increment();
            }
            Err(PeerError::Full { .. }) => {}
            Err(error) => self.break_off(Broken::Verbs(error.to_string())),
        }
    }

    /// Wakes a server that has not answered for long: it may sleep, and not every client looks at its flag.
    fn kick_if_late(&mut self, now: Nanos) {
        if self.kicks.at.is_none_or(|at| now < at) {
            return;
        }
        self.kick(Imm::Kick);
        self.kicks.pause = (self.kicks.pause * 2).min(KICK_PAUSE_MAX);
        self.kicks.at = Some(now + self.kicks.pause);
    }

    /// Before the owner sleeps: asks the server to push what is outstanding, with a wake-up, unless all of it will come
    /// like that.
    fn ask_for_pushes(&mut self) {
        let frames = &mut self.frames;
        let unasked = frames
            .numbers()
            .any(|seq| !seq.is_before(self.kicks.pushed) && frames.at(seq).mode != Mode::ReplyNotify);
        if !unasked {
            return;
        }
        let (head, count) = (self.frames.head, self.frames.outstanding() as u16);
        let covered = self.kicks.covered;
        self.kicks.covered = head;
        self.kick(Imm::Push { oldest_low: head.0 as u16, count });
        if self.kicks.covered == self.frames.next {
            self.kicks.pushed = self.frames.next;
        } else {
            self.kicks.covered = covered;
        }
    }

    #[inline]
    fn until(&self) -> Option<Nanos> {
        if self.frames.is_empty() {
            return self.calls.earliest_deadline;
        }
        Nanos::earlier(self.calls.earliest_deadline, Nanos::earlier(self.next_fetch, self.kicks.at))
    }
}

impl<P: Path> Endpoint for Caller<P> {
    fn progress(&mut self, now: Nanos) -> Next {
        self.expire(now);
        let mut any = self.pump(now);
        self.post_fetches(now);
        if self.reads_in_flight > 0 || self.turns_to_poll == 0 || self.kicks.armed {
            self.turns_to_poll = TURNS_PER_POLL;
            any |= self.poll_completions();
        } else {
            self.turns_to_poll -= 1;
        }
        let received = self.receive(now);
        if received {
            any |= self.pump(now);
        }
        if received || self.calls.has_done() {
            self.kicks.armed = false;
            return Next::Again;
        }
        self.kick_if_late(now);
        if any && self.reads_in_flight == 0 && self.frames.is_empty() {
            return Next::Again;
        }
        Next::Idle { until: self.until() }
    }

    fn arm(&mut self) -> Result<()> {
        self.counters.arms.increment();
        while let Ok(Some(_)) = self.channel.poll_cq_event() {}
        self.ask_for_pushes();
        self.kicks.armed = true;
        self.cq.req_notify(Notify::Any)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.fd());
    }
}
