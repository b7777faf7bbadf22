//! The client as an endpoint: its turn, and how it and the server wake each other.

use std::time::Duration;

use farcall_link::{Completed, PostRefused};
use farcall_verbs::{Endpoint, Nanos, Next, Notify, Result, WaitSet, Wc, WcStatus};

use super::messages::FetchState;
use super::{Caller, CallerState};
use crate::error::Broken;
use crate::paths::{Path, RequestPath, ResponsePath};
use crate::wire::{Imm, Mode, Seq};

/// Turns between looks at the completion queue when nothing in it is waited for.
const TURNS_PER_POLL: u32 = 16;
/// The longest pause between wake-ups of a server that does not answer.
const KICK_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Wake-ups without a response beyond one for each message: the server keeps receives for as many.
const KICKS_MAX: u32 = 12;

/// Counters and limits of waking the server.
pub(super) struct Kicks {
    /// When to wake it next if nothing comes.
    at: Option<Nanos>,
    /// The pause after that.
    pause: Duration,
    /// The first pause.
    first_pause: Duration,
    /// Wake-ups since the last response.
    unanswered: u32,
    /// Messages before this one are known to the server: it was woken after they were sent.
    covered: Seq,
    /// Whether the owner is about to sleep, or sleeps.
    armed: bool,
}

impl Kicks {
    pub const fn new(first_pause: Duration) -> Self {
        let (pause, covered) = (first_pause, Seq::FIRST);
        Self { at: None, pause, first_pause, unanswered: 0, covered, armed: false }
    }

    /// Nothing of an earlier connection counts; messages before `covered` have not been sent over this one.
    pub fn restart(&mut self, covered: Seq) {
        self.covered = covered;
        self.at = None;
    }

    /// A message was sent.
    #[inline]
    pub fn sent(&mut self, now: Nanos) {
        if self.at.is_none() {
            self.at = Some(now + self.pause);
        }
    }

    /// The server lives; `more` messages wait for their responses.
    #[inline]
    pub fn answered(&mut self, more: bool, now: Nanos) {
        self.unanswered = 0;
        self.pause = self.first_pause;
        self.at = more.then(|| now + self.pause);
    }
}

impl CallerState {
    /// The server says that it sleeps: wakes it, unless that was done since the last message was sent.
    pub(crate) fn kick_sleeper(&mut self) {
        if self.kicks.covered != self.messages.next {
            self.kick(Imm::Kick);
        }
    }

    /// Returns whether a wake-up was sent.
    fn kick(&mut self, imm: Imm) -> bool {
        let Some(end) = self.end.as_mut() else { return false };
        if self.kicks.unanswered >= KICKS_MAX {
            return false;
        }
        match end.connection.kick(&end.welcome.grants.messages, imm.encode()) {
            Ok(_) => {
                self.kicks.unanswered += 1;
                self.kicks.covered = self.messages.next;
                self.counters.kicks.increment();
                return true;
            }
            Err(PostRefused::Full { .. }) => {}
            Err(error) => self.break_off(Broken::Verbs(error.to_string())),
        }
        false
    }

    /// Wakes a server that has not answered for long: it may sleep, and not every client looks at its flag.
    #[inline]
    fn kick_if_late(&mut self, now: Nanos) {
        if self.kicks.at.is_none_or(|at| now < at) {
            return;
        }
        self.kick(Imm::Kick);
        self.kicks.pause = (self.kicks.pause * 2).min(KICK_PAUSE_MAX);
        self.kicks.at = Some(now + self.kicks.pause);
    }

    /// Before the owner sleeps: asks the server to push what is outstanding, with a wake-up, unless all of it will come
    /// like that. What is pushed is fetched ever more seldom, so that hardly any timer wakes a sleeper for it.
    fn ask_for_pushes(&mut self) {
        let mut numbers = self.messages.numbers();
        let messages = &mut self.messages;
        if numbers.all(|seq| messages.at(seq).mode == Mode::ReplyNotify || messages.at(seq).is_pushed) {
            return;
        }
        let (head, count) = (self.messages.head, self.messages.outstanding() as u16);
        if self.kick(Imm::Push { oldest_low: head.0 as u16, count }) {
            for seq in self.messages.numbers() {
                self.messages.at(seq).is_pushed = true;
            }
        }
    }

    #[inline]
    fn until<Q: RequestPath>(&self) -> Option<Nanos> {
        let deadline = self.calls.earliest_deadline;
        if self.messages.is_empty() {
            return deadline;
        }
        let wake = if Q::WAKES { None } else { self.kicks.at };
        Nanos::earlier(deadline, Nanos::earlier(self.next_fetch, wake))
    }

    /// Takes completions: READs that landed, free places in the send queue, wake-ups, failures.
    pub(super) fn poll_completions(&mut self) -> bool {
        let Ok(got) = self.cq.poll(&mut self.wcs).map_err(|e| self.break_off(Broken::Verbs(e.to_string())))
        else {
            return true;
        };
        let mut broken = None;
        for at in 0..got {
            let wc = self.wcs[at];
            broken = broken.or(self.completed(&wc));
        }
        // Only now: it takes the completions that are left, to where these were.
        if let Some(status) = broken {
            self.break_off(Broken::Completion(status));
        }
        got > 0
    }

    /// Returns what the connection has broken of.
    #[inline]
    fn completed(&mut self, wc: &Wc) -> Option<WcStatus> {
        let Some(end) = self.end.as_mut().filter(|end| end.connection.qp_num() == wc.qp_num) else {
            self.completed_of_old(wc);
            return None;
        };
        match end.connection.complete(wc) {
            Completed::Send { tag, .. } if tag > 0 => {
                self.reads_in_flight -= 1;
                if let Some(message) = self.messages.by_slot(tag as u16 - 1)
                    && let FetchState::Posted(bytes) = message.fetch
                    && end.connection.is_done(message.read)
                {
                    message.fetch = FetchState::Landed(bytes);
                }
            }
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Received { tag, imm, .. } => {
                end.inbox.received(&mut end.connection, tag, imm);
            }
            Completed::Failed(status) => return Some(status),
        }
        None
    }

    #[cold]
    fn completed_of_old(&mut self, wc: &Wc) {
        for connection in &mut self.closing {
            if connection.qp_num() == wc.qp_num {
                connection.complete(wc);
            }
        }
    }
}

impl<P: Path> Endpoint for Caller<P> {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Next {
        let Self { state, path, .. } = self;
        state.expire(now);
        let mut any = state.pump::<P::Response, P::Request>(path, now);
        state.post_fetches(now);
        let is_told = state.reads_in_flight > 0 || (P::Response::SENDS && !state.messages.is_empty());
        if is_told || state.turns_to_poll == 0 || state.kicks.armed {
            state.turns_to_poll = TURNS_PER_POLL;
            any |= state.poll_completions();
        } else {
            state.turns_to_poll -= 1;
        }
        let received = state.receive(path, now);
        if received {
            any |= state.pump::<P::Response, P::Request>(path, now);
        }
        if received || state.calls.has_done() {
            state.kicks.armed = false;
            return Next::Again;
        }
        if !P::Request::WAKES {
            state.kick_if_late(now);
        }
        if any && state.reads_in_flight == 0 && state.messages.is_empty() {
            return Next::Again;
        }
        Next::Idle { until: state.until::<P::Request>() }
    }

    fn arm(&mut self) -> Result<()> {
        let state = &mut self.state;
        state.counters.arms.increment();
        while let Ok(Some(_)) = state.channel.poll_cq_event() {}
        // What is sent wakes; what is fetched all the same has been executed, and its READ wakes.
        if !P::Response::SENDS {
            state.ask_for_pushes();
        }
        state.kicks.armed = true;
        state.cq.req_notify(Notify::Any)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.state.channel.fd());
    }
}
