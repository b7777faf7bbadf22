//! Wake-ups between client and server, and completions.

use farcall_link::{Completed, PostRefused};
use farcall_verbs::{Nanos, Wc, WcStatus, with_sources};

use super::CallerState;
use super::messages::FetchState;
use crate::error::Broken;
use crate::paths::{Path, RequestPath};
use crate::wire::{Imm, Mode};

impl CallerState {
    /// Wakes the server, which has set its sleep flag, unless it was woken after the last message was sent.
    pub(super) fn kick_sleeper(&mut self) {
        if !self.retransmit.has_woken_after(self.messages.next()) {
            self.kick(Imm::Kick);
        }
    }

    /// Wakes the server. Returns whether a wake-up was sent.
    fn kick(&mut self, imm: Imm) -> bool {
        // Over UC a wake-up that finds no receive is dropped.
        if self.is_reliable() && self.retransmit.is_limit_reached() {
            return false;
        }
        let Some(end) = self.end.as_mut() else { return false };
        match end.connection.kick(&end.welcome.grants.messages, imm.encode()) {
            Ok(_) => {
                // With ordered placement, all messages are placed before the wake-up is delivered. Messages have a
                // checksum if placement may be unordered.
                let has_all = !end.checksum && self.config.plan.transport.is_reliable();
                self.retransmit.on_wake(self.messages.next());
                if has_all {
                    self.retransmit.on_all_received();
                }
                self.counters.kicks.increment();
                return true;
            }
            Err(PostRefused::Full { .. }) => {}
            Err(error) => self.disconnect(Broken::Verbs(with_sources(&error))),
        }
        false
    }

    /// Wakes a server that has not responded for some time: it may sleep, and not every client reads its sleep flag.
    #[inline]
    pub(super) fn kick_if_late<Q: RequestPath>(&mut self, now: Nanos) {
        if !self.retransmit.is_due(now) {
            return;
        }
        if !self.is_reliable() {
            self.request_again::<Q>(now);
        } else if self.kick(Imm::Kick) {
            self.retransmit.was_due();
            if self.retransmit.all_received() {
                return self.retransmit.set_longest_pause(now);
            }
        }
        self.retransmit.next_pause(now);
    }

    /// Repeats requests over a transport that loses messages, because the silence may be due to a lost response or a
    /// lost request. The server executes only the next number, so that no request runs twice.
    #[cold]
    fn request_again<Q: RequestPath>(&mut self, now: Nanos) {
        if self.end_if_still_corrupt() {
            return self.retransmit.on_response(!self.messages.is_empty(), now);
        }
        if self.retransmit.silence(now) >= self.config.silence_max {
            return self.disconnect(Broken::Silent(self.config.silence_max));
        }
        Q::request_missing(self, now);
    }

    /// Requests the responses of executed messages, which the server sends from its slots. If the server has not
    /// responded to an earlier request, the oldest message or that request may be lost, so the oldest message is sent
    /// again as well. Later messages are not: a slow server has received them, and a lost one among them is sent again
    /// when it becomes the oldest.
    pub(crate) fn request_responses<Q: RequestPath>(&mut self, now: Nanos) {
        let asked_before = self.retransmit.has_woken();
        self.request_push();
        if asked_before {
            self.send_oldest_again::<Q>(now);
        }
    }

    /// Repeats the oldest message, which also requests its response.
    pub(crate) fn request_by_oldest<Q: RequestPath>(&mut self, now: Nanos) {
        self.send_oldest_again::<Q>(now);
        self.retransmit.on_wake(self.messages.next());
    }

    /// Requests the server to push all outstanding responses. Returns whether the request was sent.
    pub(super) fn request_push(&mut self) -> bool {
        let (head, count) = (self.messages.head(), self.messages.outstanding() as u16);
        self.kick(Imm::Push { oldest_low: head.0 as u16, count })
    }

    /// Called before the client sleeps. Requests the server to push all outstanding responses with a wake-up, unless
    /// all of them will be sent like that anyway. Pushed responses are fetched at increasing intervals, so that a
    /// timer rarely wakes the sleeping client for them.
    pub(super) fn request_pushes(&mut self) {
        let mut numbers = self.messages.numbers();
        let messages = &mut self.messages;
        let are_told_of =
            numbers.all(|seq| messages.at(seq).mode == Mode::ReplyNotify || messages.at(seq).is_pushed);
        let waits_for_answers = self.needs_notification();
        if are_told_of && !waits_for_answers {
            // No push request wakes the server here, so only the timer would.
            if self.retransmit.sleeps_at_once() && !self.messages.is_empty() && self.is_reliable() {
                self.kick_sleeper();
            }
            return;
        }
        if self.request_push() {
            if waits_for_answers {
                self.collecting.on_notify_enabled(self.is_reliable());
            }
            for seq in self.messages.numbers() {
                self.messages.at(seq).is_pushed = true;
            }
        }
    }

    /// Returns whether calls are deferred and no wake-up for their answers has been requested, neither from the server
    /// directly nor by a collect request.
    fn needs_notification(&mut self) -> bool {
        self.calls.deferred > 0
            && self.server_notifies_answers()
            && !self.collecting.server_notifies()
            && !self.is_collecting()
    }

    /// Returns whether the server announces deferred answers.
    pub(super) fn server_notifies_answers(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.server_notifies)
    }

    #[inline]
    pub(super) fn until<P: Path>(&self) -> Option<Nanos> {
        // A collect request that is already due is sent with the next free slot.
        let may_ask = self.messages.outstanding() < self.messages.window();
        let ask = self.collecting.next().filter(|_| may_ask);
        let deadline = Nanos::earlier(self.calls.earliest_deadline, ask);
        if self.messages.is_empty() {
            return deadline;
        }
        let wake = if P::MINDS_SILENCE { self.retransmit.at() } else { None };
        Nanos::earlier(deadline, Nanos::earlier(self.fetches.next(), wake))
    }

    /// Handles completions: completed READs, free send queue slots, wake-ups, failures.
    pub(super) fn poll_completions(&mut self) -> bool {
        let Ok(got) =
            self.cq.poll(&mut self.wcs).map_err(|e| self.disconnect(Broken::Verbs(with_sources(&e))))
        else {
            return true;
        };
        let mut broken = None;
        for at in 0..got {
            let wc = self.wcs[at];
            broken = broken.or(self.completed(&wc));
        }
        // After the loop, because ending the connection polls more completions into the same array.
        if let Some(status) = broken {
            self.disconnect(Broken::Completion(status));
        }
        got > 0
    }

    /// Handles a completion. Returns the status that has broken the connection.
    #[inline]
    fn completed(&mut self, wc: &Wc) -> Option<WcStatus> {
        let Some(end) = self.end.as_mut().filter(|end| end.connection.qp_num() == wc.qp_num) else {
            return self.completed_elsewhere(wc);
        };
        match end.connection.complete(wc) {
            Completed::Send { tag, .. } if tag > 0 => {
                self.fetches.on_completion();
                if let Some(message) = self.messages.by_slot(tag as u16 - 1)
                    && let FetchState::Posted(bytes) = message.fetch
                    && end.connection.is_done(message.read)
                {
                    message.fetch = FetchState::Landed(bytes);
                }
            }
            Completed::Send { .. } | Completed::Flushed => {}
            Completed::Received { tag, imm, .. } => {
                let is_wake = end.inbox.received(&mut end.connection, tag, imm);
                if is_wake && imm.is_some_and(|imm| Imm::decode(imm) == Imm::Answered) {
                    self.counters.answers_told.increment();
                    self.collecting.on_wake();
                }
            }
            Completed::Failed(status) => return Some(status),
        }
        None
    }

    /// Handles a completion of the datagram queue pair, or of a queue pair that is closing.
    fn completed_elsewhere(&mut self, wc: &Wc) -> Option<WcStatus> {
        let datagram_responses = self.end.as_mut().and_then(|end| end.datagram_responses.as_mut());
        let Some(completed) = datagram_responses.and_then(|responses| responses.complete(wc)) else {
            let old = self.closing.iter_mut().filter(|old| old.qp_num() == wc.qp_num);
            old.for_each(|old| _ = old.complete(wc));
            return None;
        };
        match completed {
            Completed::Received { tag, len_bytes, .. } => self.datagram_arrived(tag as usize, len_bytes),
            Completed::Failed(status) => return Some(status),
            Completed::Send { .. } | Completed::Flushed => {}
        }
        None
    }
}
