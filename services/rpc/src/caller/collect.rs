//! Collection of deferred answers: one request for all of them, while any call is deferred.
//!
//! A collect request whose response the server writes or sends also requests a wake-up for the next answer. The server
//! then wakes the client once, and the client sends another request. A client that fetches responses requests the
//! wake-up after R requests without an answer (RF-RPC), or with the push request that it sends before it sleeps. Until
//! then, with a server of an earlier version, and over a transport that may lose the wake-up, it repeats the request
//! after pauses. These grow with their sum, so that an answer is late by a quarter of the time that its call took, at
//! most by the longest pause.

use std::time::Duration;

use farcall_verbs::Nanos;

use super::CallerState;
use super::connection::Source;
use crate::error::{Broken, CallError, UnknownBecause};
use crate::wire::{Collected, CollectedResult, ResponseFlags, ResponseHeader, Seq, Status, take_collected};

/// The shortest pause between collect requests.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The longest pause if the server announces answers over a transport that may lose the announcement.
const PAUSE_NOTIFIED_MAX: Duration = Duration::from_millis(100);

/// Schedule of the collect requests.
#[derive(Debug, Default)]
pub(super) struct Collecting {
    /// When the next request is due; `None` if one is in flight or the server will wake the client.
    next: Option<Nanos>,
    pause: Duration,
    /// Requests without an answer since the last answer or wake-up.
    unanswered_requests: u32,
    /// `true` if the request in flight requests a wake-up, over this connection.
    requests_notification: bool,
    /// `true` if the server will wake the client for the next answer.
    server_notifies: bool,
    /// `true` if the server has woken the client since the last request was sent.
    is_woken: bool,
    event: CollectEvent,
    /// Payload of the last response; a field to reuse its memory.
    entries: Vec<u8>,
}

/// Event of a driver iteration that affects the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CollectEvent {
    /// No event.
    #[default]
    None,
    /// The server deferred a call.
    Deferred,
    /// A collect response contained no answer.
    NoAnswer,
    /// A collect response contained answers; there may be more.
    Answers,
    /// The server announced an answer.
    Notified,
    /// A new connection, over which no request has been sent yet.
    Connection,
}

impl Collecting {
    /// Returns whether a request is due.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.next.is_some_and(|at| now >= at)
    }

    /// Returns when the next request is due.
    #[inline]
    pub const fn next(&self) -> Option<Nanos> {
        self.next
    }

    /// Records that a request was sent.
    pub fn on_request_sent(&mut self, requests_notification: bool) {
        (self.next, self.is_woken) = (None, false);
        self.requests_notification = requests_notification;
    }

    /// Records that the server announced an answer.
    pub fn on_wake(&mut self) {
        (self.server_notifies, self.is_woken) = (false, true);
        if self.event == CollectEvent::None {
            self.event = CollectEvent::Notified;
        }
    }

    /// Records that the client's push request has requested a wake-up for the next answer.
    pub fn on_notify_enabled(&mut self, is_reliable: bool) {
        self.server_notifies = true;
        self.next = self.next.filter(|_| !is_reliable);
    }

    /// Discards the wake-ups that were requested over an earlier connection.
    pub fn connected(&mut self) {
        (self.requests_notification, self.server_notifies, self.is_woken) = (false, false, false);
        self.event = CollectEvent::Connection;
    }

    /// Returns the number of requests without an answer since the last answer or wake-up.
    pub const fn unanswered_requests(&self) -> u32 {
        self.unanswered_requests
    }

    /// Returns whether the server will wake the client for the next answer.
    #[inline]
    pub const fn server_notifies(&self) -> bool {
        self.server_notifies
    }

    /// Returns whether an event of this iteration affects the schedule.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.event != CollectEvent::None
    }

    /// Records that the server deferred a call.
    pub const fn on_deferred(&mut self) {
        (self.event, self.unanswered_requests) = (CollectEvent::Deferred, 0);
    }

    /// Records a response to a request. Its answers follow.
    fn on_response(&mut self) {
        self.event = CollectEvent::NoAnswer;
        self.unanswered_requests = self.unanswered_requests.saturating_add(1);
        // A wake-up that arrived in the meantime has used up the requested one.
        self.server_notifies |= std::mem::take(&mut self.requests_notification) && !self.is_woken;
    }

    /// Records that no answer will come: all deferred calls have ended.
    const fn on_no_answer(&mut self) {
        self.event = CollectEvent::NoAnswer;
    }

    /// Records an answer.
    const fn on_answer(&mut self) {
        (self.event, self.unanswered_requests) = (CollectEvent::Answers, 0);
    }

    /// Discards the event and the next request, because no call is deferred.
    pub const fn unschedule(&mut self) {
        (self.event, self.next) = (CollectEvent::None, None);
    }

    /// Schedules the next request after an iteration with an event, while calls are deferred. `is_collecting` is whether
    /// a request is in flight.
    #[cold]
    pub fn schedule(&mut self, is_reliable: bool, is_collecting: bool, now: Nanos) {
        let event = std::mem::take(&mut self.event);
        self.pause = match event {
            CollectEvent::None | CollectEvent::NoAnswer => {
                let longest = if self.server_notifies { PAUSE_NOTIFIED_MAX } else { PAUSE_MAX };
                (self.pause + self.pause / 4).clamp(PAUSE_MIN, longest)
            }
            _ => PAUSE_MIN,
        };
        let at = match event {
            CollectEvent::Answers => now,
            _ if self.is_woken => now,
            _ => now + self.pause,
        };
        self.next = match event {
            // The response to the request in flight will cause a new schedule.
            _ if is_collecting => None,
            CollectEvent::None | CollectEvent::NoAnswer | CollectEvent::Deferred
                if self.server_notifies && is_reliable =>
            {
                None
            }
            _ => Nanos::earlier(self.next, Some(at)),
        };
    }

    /// Discards the state of a session that has ended.
    pub fn restart(&mut self) {
        *self = Self { entries: std::mem::take(&mut self.entries), ..Self::default() };
    }
}

impl CallerState {
    /// Schedules the next collect request after an iteration with an event.
    #[cold]
    pub(super) fn schedule_collect(&mut self, now: Nanos) {
        if self.calls.deferred == 0 {
            return self.collecting.unschedule();
        }
        let (is_reliable, is_collecting) = (self.is_reliable(), self.is_collecting());
        self.collecting.schedule(is_reliable, is_collecting, now);
    }

    /// Records a repeated response, by which the server announces a deferred answer.
    #[cold]
    pub(super) fn on_repeated_response(&mut self) {
        if self.calls.deferred > 0 {
            self.counters.answers_told.increment();
            self.collecting.on_wake();
        }
    }

    /// Delivers the answers of a collect response. Answers to cancelled calls are discarded.
    #[cold]
    pub(super) fn deliver_collected(&mut self, seq: Seq, header: &ResponseHeader, source: Source) {
        self.collecting.on_response();
        let Some(end) = self.end.as_ref().filter(|_| !header.flags.contains(ResponseFlags::ERROR)) else {
            return;
        };
        let mut entries = std::mem::take(&mut self.collecting.entries);
        entries.clear();
        end.append_payload(seq, header, source, &mut entries);
        let mut rest = &entries[..];
        while !rest.is_empty() {
            match take_collected(&mut rest) {
                Ok(collected) => self.deliver_late(&collected),
                Err(why) => {
                    self.disconnect_at(seq, &why.to_string());
                    break;
                }
            }
        }
        self.collecting.entries = entries;
    }

    fn deliver_late(&mut self, collected: &Collected<'_>) {
        self.collecting.on_answer();
        let Some(at) = self.calls.find_deferred(collected.call_id) else {
            if let CollectedResult::AtServer(_) = collected.result {
                self.queue.push_release(collected.call_id);
            }
            return;
        };
        self.calls.unmark_deferred(at);
        match collected.result {
            CollectedResult::AtServer(total_bytes) if total_bytes > 0 => {
                self.begin_long_result(at, total_bytes as usize);
            }
            CollectedResult::AtServer(_) => self.calls.finish(at, None),
            CollectedResult::Here(bytes) if collected.status == Status::OK => {
                self.counters.result_bytes.add(bytes.len() as u64);
                self.calls.get(at).reply.extend_from_slice(bytes);
                self.calls.finish(at, None);
            }
            CollectedResult::Here(text) => {
                self.counters.errors.increment();
                self.calls.finish(at, Some(CallError::of_status(collected.status, text)));
            }
        }
    }

    /// Ends all deferred calls: the collected answers stay corrupt however often they are fetched, and the server has
    /// discarded them. It is not known which calls they belong to.
    pub(super) fn fail_deferred(&mut self) {
        let why = Broken::Protocol("answers that came later stay corrupt".into());
        for at in 0..self.calls.records.len() as u16 {
            if self.calls.get(at).is_deferred {
                self.stop_sending(at);
                self.counters.outcomes_unknown.increment();
                let unknown = UnknownBecause::Disconnected(why.clone());
                self.calls.finish(at, Some(CallError::OutcomeUnknown(unknown)));
            }
        }
        self.collecting.on_no_answer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengthens_pauses_until_an_answer_arrives() {
        let mut collecting = Collecting::default();
        let mut now = Nanos(0);
        let mut pause = |collecting: &mut Collecting| {
            collecting.schedule(true, false, now);
            let at = collecting.next().unwrap();
            assert!(collecting.is_due(at));
            let pause = at.since(now);
            now = at;
            collecting.on_request_sent(false);
            collecting.on_response();
            pause
        };
        collecting.on_deferred();
        let pauses: Vec<Duration> = (0..60).map(|_| pause(&mut collecting)).collect();
        assert_eq!((pauses[0], pauses[59]), (PAUSE_MIN, PAUSE_MAX));
        assert!(pauses.is_sorted());
        assert_eq!(collecting.unanswered_requests(), 60);
        collecting.on_answer();
        assert_eq!(
            (pause(&mut collecting), pause(&mut collecting)),
            (Duration::ZERO, PAUSE_MIN + PAUSE_MIN / 4)
        );
    }

    #[test]
    fn sends_no_request_while_the_server_will_announce_the_answer() {
        let mut collecting = Collecting::default();
        collecting.on_deferred();
        collecting.schedule(true, false, Nanos(0));
        collecting.on_request_sent(true);
        collecting.on_response();
        collecting.schedule(true, false, Nanos(0));
        assert!(collecting.server_notifies() && collecting.next().is_none());
        collecting.on_wake();
        collecting.schedule(true, false, Nanos(7));
        assert_eq!((collecting.server_notifies(), collecting.next()), (false, Some(Nanos(7))));
        // A wake-up between request and response uses up the requested one.
        collecting.on_request_sent(true);
        collecting.on_wake();
        collecting.on_response();
        assert!(!collecting.server_notifies());
    }
}
