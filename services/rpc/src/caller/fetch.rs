//! Fetching of responses by READ: the server leaves them in their slots.

use farcall_verbs::{Nanos, with_sources};

use super::CallerState;
use super::connection::{ResponseCheck, Source};
use super::fetches::Fetches;
use super::messages::{FetchState, MessageKind};
use crate::error::{Broken, CallError};
use crate::paths::ResponsePath;
use crate::wire::Seq;

/// Number of fetches of a response with a wrong checksum before its call ends.
const CORRUPT_FETCHES_MAX: u32 = 64;

impl CallerState {
    /// Posts READs for messages that are to be fetched and have none in flight.
    #[inline]
    pub(super) fn post_fetches(&mut self, now: Nanos) {
        if self.messages.is_empty() || self.fetches.is_paused(now) {
            return;
        }
        let ahead = self.messages.outstanding().min(self.fetches.ahead());
        for i in 0..ahead {
            let seq = self.messages.head().plus(i);
            if self.messages.next_to_resend() == Some(seq) {
                break;
            }
            let message = self.messages.at(seq);
            if message.is_fetched()
                && message.fetch == FetchState::None
                && !self.post_read(seq, 0, self.tuner.fetch_bytes())
            {
                break;
            }
        }
    }

    /// READs bytes `from..to` of a response slot.
    pub(super) fn post_read(&mut self, seq: Seq, from: usize, to: usize) -> bool {
        let Some(end) = self.end.as_mut() else { return false };
        let to = to.min(end.responses.slot_bytes());
        let offset = end.responses.offset(seq) + from;
        if end.connection.room() == 0 {
            return false;
        }
        let tag = end.responses.index(seq) as u32 + 1;
        match end.read_responses(offset, to - from, tag) {
            Ok(ticket) => {
                self.counters.reads.increment();
                self.fetches.on_post();
                let message = self.messages.at(seq);
                (message.fetch, message.read) = (FetchState::Posted(to), ticket);
                true
            }
            Err(error) => {
                self.disconnect(Broken::Verbs(with_sources(&error)));
                false
            }
        }
    }

    /// Handles the fetched response of the oldest message. Returns whether there was one.
    #[inline]
    pub(super) fn receive_fetched<P: ResponsePath>(&mut self, path: &mut P, now: Nanos) -> bool {
        let seq = self.messages.head();
        let FetchState::Landed(bytes) = self.messages.at(seq).fetch else { return false };
        let Some(end) = &self.end else { return false };
        match end.check(seq, Source::Fetched, bytes) {
            ResponseCheck::Complete(header) => {
                self.counters.fetched.increment();
                self.fetches.widen();
                self.take(path, seq, &header, Source::Fetched);
                return true;
            }
            ResponseCheck::Longer(needed) => {
                self.counters.second_reads.increment();
                self.post_read(seq, bytes, needed);
            }
            ResponseCheck::NotReady { server_sleeps } => self.fetch_failed(seq, server_sleeps, now),
            ResponseCheck::Corrupt => return self.fetched_corrupt(seq, now),
            ResponseCheck::Invalid(why) => self.disconnect_at(seq, &why),
        }
        false
    }

    fn fetch_failed(&mut self, seq: Seq, server_sleeps: bool, now: Nanos) {
        self.counters.failed_fetches.increment();
        // The server replies in order, so the responses fetched ahead were not ready either.
        for i in 0..self.messages.outstanding().min(Fetches::AHEAD_MAX) {
            let message = self.messages.at(seq.plus(i));
            if matches!(message.fetch, FetchState::Landed(_)) {
                message.fetch_again();
            }
        }
        let without_pause = self.tuner.fetches_without_pause();
        let message = self.messages.at(seq);
        message.failed_fetches += 1;
        let beyond = message.failed_fetches.saturating_sub(without_pause);
        self.fetches.on_failure(beyond, message.is_pushed, now);
        if server_sleeps {
            self.kick_sleeper();
        }
    }

    /// Returns whether more fetches of the oldest message have failed than are made without a pause: its call takes
    /// long.
    pub(super) fn exceeds_quick_fetches(&self) -> bool {
        let without_pause = self.tuner.fetches_without_pause();
        let oldest = self.messages.oldest();
        oldest.is_some_and(|message| message.is_fetched() && message.failed_fetches > without_pause)
    }

    /// Repeats a fetch up to [`CORRUPT_FETCHES_MAX`] times; then ends the call and its message. Returns whether it
    /// ended.
    #[cold]
    fn fetched_corrupt(&mut self, seq: Seq, now: Nanos) -> bool {
        let message = self.messages.at(seq);
        message.fetch_again();
        message.corrupt_checks += 1;
        let checks = message.corrupt_checks;
        if checks < CORRUPT_FETCHES_MAX {
            self.fetches.on_corrupt(checks, now);
            return false;
        }
        self.end_corrupt(seq, CORRUPT_FETCHES_MAX);
        true
    }

    /// Ends the call of the oldest message, because its response stays corrupt.
    pub(super) fn end_corrupt(&mut self, seq: Seq, fetches: u32) {
        let message = *self.messages.at(seq);
        self.messages.pop();
        self.counters.errors.increment();
        if message.kind == MessageKind::Collect {
            self.fail_deferred();
        }
        if message.kind.is_of_call() {
            self.stop_sending(message.call);
            let error = CallError::CorruptResult { fetches };
            self.calls.finish(message.call, Some(error));
            self.calls.on_message_end(message.call);
        }
    }
}
