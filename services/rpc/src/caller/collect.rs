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
    pub unanswered_requests: u32,
    /// `true` if the request in flight requests a wake-up, over this connection.
    requests_notification: bool,
    /// `true` if the server will wake the client for the next answer.
    pub server_notifies: bool,
    /// `true` if the server has woken the client since the last request was sent.
    is_woken: bool,
    pub event: CollectEvent,
    /// Payload of the last response; a field to reuse its memory.
    entries: Vec<u8>,
}

/// Event of a driver iteration that affects the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CollectEvent {
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

    /// Discards the state of a session that has ended.
    pub fn restart(&mut self) {
        *self = Self { entries: std::mem::take(&mut self.entries), ..Self::default() };
    }
}

impl CallerState {
    /// Schedules the next collect request after an iteration with an event.
    #[cold]
    pub(super) fn schedule_collect(&mut self, now: Nanos) {
        let is_reliable = self.is_reliable();
        let is_collecting = self.is_collecting();
        let collecting = &mut self.collecting;
        let event = std::mem::take(&mut collecting.event);
        if self.calls.deferred == 0 {
            collecting.next = None;
            return;
        }
        collecting.pause = match event {
            CollectEvent::None | CollectEvent::NoAnswer => {
                let longest = if collecting.server_notifies { PAUSE_NOTIFIED_MAX } else { PAUSE_MAX };
                (collecting.pause + collecting.pause / 4).clamp(PAUSE_MIN, longest)
            }
            _ => PAUSE_MIN,
        };
        let at = match event {
            CollectEvent::Answers => now,
            _ if collecting.is_woken => now,
            _ => now + collecting.pause,
        };
        collecting.next = match event {
            // The response to the request in flight will cause a new schedule.
            _ if is_collecting => None,
            CollectEvent::None | CollectEvent::NoAnswer | CollectEvent::Deferred
                if collecting.server_notifies && is_reliable =>
            {
                None
            }
            _ => Nanos::earlier(collecting.next, Some(at)),
        };
    }

    /// Records a repeated response, by which the server announces a deferred answer.
    #[cold]
    pub(crate) fn on_repeated_response(&mut self) {
        if self.calls.deferred > 0 {
            self.counters.answers_told.increment();
            self.collecting.on_wake();
        }
    }

    /// Delivers the answers of a collect response. Answers to cancelled calls are discarded.
    #[cold]
    pub(super) fn deliver_collected(&mut self, seq: Seq, header: &ResponseHeader, source: Source) {
        let collecting = &mut self.collecting;
        collecting.event = CollectEvent::NoAnswer;
        collecting.unanswered_requests = collecting.unanswered_requests.saturating_add(1);
        // A wake-up that arrived in the meantime has used up the requested one.
        collecting.server_notifies |=
            std::mem::take(&mut collecting.requests_notification) && !collecting.is_woken;
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
        (self.collecting.event, self.collecting.unanswered_requests) = (CollectEvent::Answers, 0);
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
    pub(crate) fn fail_deferred(&mut self) {
        let why = Broken::Protocol("answers that came later stay corrupt".into());
        for at in 0..self.calls.records.len() as u16 {
            if self.calls.get(at).is_deferred {
                self.stop_sending(at);
                self.counters.outcomes_unknown.increment();
                let unknown = UnknownBecause::Disconnected(why.clone());
                self.calls.finish(at, Some(CallError::OutcomeUnknown(unknown)));
            }
        }
        self.collecting.event = CollectEvent::NoAnswer;
    }
}
