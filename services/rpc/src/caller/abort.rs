//! Calls that end without a result, and the end of a connection.

use farcall_verbs::Nanos;

use super::calls::State;
use super::datagrams::DatagramResponses;
use super::messages::{FetchState, Messages};
use super::{CallId, CallerState};
use crate::error::{Broken, CallError, UnknownBecause};
use crate::paths::{ResponsePath, ServerReply};

impl CallerState {
    /// Cancels a call: its outcome is not returned. Its slot is reused only after the server has responded. Returns
    /// whether the call certainly was not and will not be executed.
    pub fn cancel(&mut self, call: CallId) -> bool {
        let Some(at) = self.calls.find(call) else { return false };
        self.counters.cancelled.increment();
        let never_sent = !self.calls.get(at).may_be_executed;
        self.stop_sending(at);
        self.calls.forget(at);
        never_sent
    }

    /// Ends the calls whose deadline has passed.
    #[inline]
    pub(super) fn expire(&mut self, now: Nanos) {
        if self.calls.earliest_deadline.is_some_and(|earliest| now >= earliest) {
            self.expire_late(now);
        }
    }

    #[cold]
    fn expire_late(&mut self, now: Nanos) {
        let mut earliest: Option<Nanos> = None;
        for at in 0..self.calls.records.len() as u16 {
            let record = self.calls.get(at);
            let Some(deadline) = record.context.deadline.filter(|_| record.state == State::Pending) else {
                continue;
            };
            if now < deadline {
                earliest = Nanos::earlier(earliest, Some(deadline));
                continue;
            }
            self.counters.deadlines_exceeded.increment();
            self.stop_sending(at);
            self.end_without_result(at, CallError::DeadlineExceeded, UnknownBecause::Deadline);
        }
        self.calls.earliest_deadline = earliest;
    }

    /// Completes a call with `unknown` if its request was sent, or else with `not_sent`.
    fn end_without_result(&mut self, at: u16, not_sent: CallError, unknown: UnknownBecause) {
        let error = if self.calls.get(at).may_be_executed {
            self.counters.outcomes_unknown.increment();
            CallError::OutcomeUnknown(unknown)
        } else {
            not_sent
        };
        self.calls.finish(at, Some(error));
    }

    /// Completes all calls with an error, and ends the session: its messages are discarded here, although the server
    /// may still hold the session. The next connection begins a new one.
    pub fn fail_all(&mut self, why: &Broken) {
        self.queue.restart([]);
        for at in 0..self.calls.records.len() as u16 {
            if self.calls.get(at).state == State::Pending {
                let unknown = UnknownBecause::Disconnected(why.clone());
                self.end_without_result(at, CallError::NotSent(why.clone()), unknown);
            }
        }
        if self.end.is_none() {
            self.discard_messages(self.messages.window() as u16);
            self.session_ended = true;
        }
    }

    /// Completes the calls that an earlier session may have executed; the others are sent over the next connection.
    pub(super) fn fail_sent_calls(&mut self) {
        let mut again: Vec<u16> = Vec::new();
        for at in 0..self.calls.records.len() as u16 {
            let record = self.calls.get(at);
            if record.state != State::Pending {
                continue;
            }
            if record.may_be_executed {
                self.counters.outcomes_unknown.increment();
                let why = UnknownBecause::ServerRestarted;
                self.calls.finish(at, Some(CallError::OutcomeUnknown(why)));
            } else if !record.is_open {
                record.sent_bytes = 0;
                again.push(at);
            }
        }
        // In submission order.
        again.sort_by_key(|at| self.calls.get(*at).id);
        self.queue.restart(again);
    }

    /// Discards the messages in flight, because their session has ended.
    pub(super) fn discard_messages(&mut self, window: u16) {
        for seq in self.messages.numbers() {
            let message = *self.messages.at(seq);
            if message.kind.is_of_call() {
                self.calls.on_message_end(message.call);
            }
        }
        self.messages = Messages::new(window);
        self.collecting.restart();
    }

    /// Sends no further message of a call.
    pub(super) fn stop_sending(&mut self, at: u16) {
        let record = self.calls.get(at);
        if record.total_bytes > record.reply.len() || record.is_deferred {
            // The server stores the rest of its long result, or its answer is deferred: the server must release it.
            self.queue.push_release(record.id.0);
        }
        self.queue.remove_call(at);
    }

    /// Ends the connection. Calls are retained: those that were sent wait until the session is resumed, the others
    /// wait for any connection.
    pub fn disconnect(&mut self, why: Broken) {
        if self.end.is_none() || self.broken.is_some() {
            return;
        }
        self.counters.connections_closed.increment();
        // Further errors of this connection do not change the reason.
        self.broken = Some(why);
        // The server may have sent or written results just before the connection ended. Modes and tuning do not learn
        // from them.
        for _ in 0..self.messages.window() {
            if !self.poll_completions() {
                break;
            }
        }
        if let Some(end) = self.end.as_mut() {
            end.connection.close();
            end.datagram_responses.iter_mut().for_each(DatagramResponses::close);
        }
        let path = &mut ServerReply::new(&self.config);
        while !self.messages.is_empty()
            && (self.receive_sent(path) || self.receive_written(path) || self.receive_datagram(path))
        {
        }
        if let Some(end) = self.end.take() {
            self.closing.push(end.connection.into());
            self.closing.extend(end.datagram_responses.map(DatagramResponses::into_pair));
        }
        self.fetches.on_disconnect();
        for seq in self.messages.numbers() {
            self.messages.at(seq).fetch = FetchState::None;
        }
    }
}
