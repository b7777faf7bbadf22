//! Deferred answers, stored until the client collects them.
//!
//! The message of a deferred call is answered at once with [`Status::DEFERRED`], so that later messages are executed.
//! The client requests the result by another message. Like any response, the result then stays in its slot until the
//! client has received it. It therefore survives the loss of a connection, and no call is executed twice.

use std::sync::Arc;

use farcall_verbs::{Clock, Nanos};

use super::buffered::BufferedTotal;
use super::deferred::{HandlerDisposition, Outcome, Pending};
use super::execute::Answer;
use super::serve::Engine;
use super::session::Session;
use super::{Handler, ServerConnection};
use crate::wire::batch::{entry_bytes, push_entry, take_result};
use crate::wire::{
    Collected, CollectedResult, Mode, RESPONSE_HEADER_BYTES, RequestHeader, Status, collected_bytes,
    push_collected,
};

/// A deferred call, or a batch with deferred calls.
pub(crate) struct DeferredCall {
    pub call_id: u64,
    /// When the call expires.
    pub deadline: Option<Nanos>,
    answers: Answers,
}

enum Answers {
    One(Arc<Pending>),
    Batch {
        /// The results so far; those of deferred calls are empty, with [`Status::DEFERRED`].
        results: Vec<u8>,
        late: Vec<Arc<Pending>>,
    },
    /// The complete outcome.
    Complete(Outcome),
}

impl DeferredCall {
    pub fn one(call_id: u64, deadline: Option<Nanos>, pending: Arc<Pending>) -> Self {
        Self { call_id, deadline, answers: Answers::One(pending) }
    }

    pub fn batch(call_id: u64, deadline: Option<Nanos>, results: Vec<u8>, late: Vec<Arc<Pending>>) -> Self {
        Self { call_id, deadline, answers: Answers::Batch { results, late } }
    }

    fn pending(&self) -> &[Arc<Pending>] {
        match &self.answers {
            Answers::One(pending) => std::slice::from_ref(pending),
            Answers::Batch { late, .. } => late,
            Answers::Complete(_) => &[],
        }
    }

    /// Returns how many calls count as deferred.
    pub fn calls(&self) -> usize {
        self.pending().len().max(1)
    }

    /// Returns the outcome, if it is complete.
    fn into_outcome(mut self) -> Option<Outcome> {
        match std::mem::replace(&mut self.answers, Answers::Batch { results: Vec::new(), late: Vec::new() }) {
            Answers::Complete(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Notifies the handlers that no caller waits for the answer any more.
    pub fn cancel(&self) {
        self.pending().iter().for_each(|pending| pending.cancel());
    }

    /// Returns whether all answers have been given.
    fn is_answered(&self) -> bool {
        self.pending().iter().all(|pending| pending.is_answered())
    }

    /// Returns the outcome if all answers have been given.
    fn outcome(&mut self, buffered: &BufferedTotal, result_bytes_max: usize) -> Option<&Outcome> {
        if !self.is_answered() {
            return None;
        }
        let there = match &self.answers {
            Answers::One(pending) => pending.take_outcome(),
            Answers::Batch { results, late } => Some(Outcome {
                status: Status::OK,
                bytes: buffered.count(merge_results(results, late, result_bytes_max)),
            }),
            Answers::Complete(_) => None,
        };
        if let Some(there) = there {
            self.answers = Answers::Complete(there);
        }
        match &self.answers {
            Answers::Complete(outcome) => Some(outcome),
            _ => None,
        }
    }
}

impl Drop for DeferredCall {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Inserts the deferred answers into the results of a batch.
fn merge_results(results: &[u8], late: &[Arc<Pending>], result_bytes_max: usize) -> Vec<u8> {
    let mut late = late.iter();
    let (mut rest, mut whole) = (results, Vec::with_capacity(results.len()));
    // This thread has encoded the results, so each is complete.
    while let Ok((status, bytes)) = take_result(&mut rest) {
        if status != Status::DEFERRED {
            push_entry(&mut whole, status.0, bytes);
            continue;
        }
        match late.next().and_then(|pending| pending.take_outcome()) {
            Some(came) if whole.len() + rest.len() + entry_bytes(came.bytes.len()) <= result_bytes_max => {
                push_entry(&mut whole, came.status.0, &came.bytes);
            }
            Some(_) => push_entry(&mut whole, Status::RESULT_TOO_LARGE.0, b""),
            None => push_entry(&mut whole, Status::CANCELLED.0, b""),
        }
    }
    whole
}

impl Session {
    /// Returns the number of deferred calls that are not answered, or not collected.
    pub fn deferred_calls(&self) -> usize {
        self.deferred.iter().map(DeferredCall::calls).sum()
    }

    /// Returns whether there is an answer that is not collected.
    pub fn has_answers(&self) -> bool {
        self.deferred.iter().any(DeferredCall::is_answered)
    }

    /// Discards a deferred call that the client has cancelled.
    pub fn cancel_deferred(&mut self, call_id: u64) -> bool {
        let at = self.deferred.iter().position(|deferred| deferred.call_id == call_id);
        at.map(|at| self.deferred.remove(at)).is_some()
    }
}

impl<H: Handler, C: Clock> Engine<H, C> {
    /// Returns the state of the current call if the handler has deferred it.
    #[cold]
    pub(super) fn take_deferred(&mut self) -> Option<Arc<Pending>> {
        match std::mem::take(&mut self.deferred_calls.disposition) {
            HandlerDisposition::Immediate => None,
            HandlerDisposition::Deferred(pending) => Some(pending),
            HandlerDisposition::Refused => {
                self.counters.deferrals_refused.increment();
                None
            }
        }
    }

    /// Stores a call until it is answered and collected.
    #[cold]
    pub(super) fn store_deferred(&mut self, end: &mut ServerConnection, call: DeferredCall) -> Answer {
        self.counters.deferred.add(call.calls() as u64);
        self.deferred_calls.next_deadline = Nanos::earlier(self.deferred_calls.next_deadline, call.deadline);
        end.session.deferred.push(call);
        Answer { status: Status::DEFERRED, ..Answer::ACK }
    }

    /// Returns the results of answered calls, as many as fit into the slot.
    #[cold]
    pub(super) fn collect(
        &mut self,
        end: &mut ServerConnection,
        header: &RequestHeader,
    ) -> Result<Answer, String> {
        if header.len_bytes > 0 {
            return Err(format!("message {}: collects, with a payload", header.seq.0));
        }
        if header.mode() != Mode::Fetch {
            // The wake-up is for answers that are not given yet. The client requests answers that do not fit again at
            // once.
            end.enable_notify();
        }
        let result_bytes_max = self.config.result_bytes_max as usize;
        let session = &mut end.session;
        let capacity = session.responses.capacity();
        let entries = &mut self.spill;
        let mut place = 0;
        while place < session.deferred.len() {
            let call_id = session.deferred[place].call_id;
            let Some(outcome) = session.deferred[place].outcome(&self.buffered, result_bytes_max) else {
                place += 1;
                continue;
            };
            let (status, room) = (outcome.status, capacity - entries.len());
            let is_long = collected_bytes(outcome.bytes.len()) > room;
            if is_long && !entries.is_empty() {
                break;
            }
            let call = session.deferred.remove(place);
            let Some(Outcome { bytes, .. }) = call.into_outcome() else { continue };
            if is_long && status == Status::OK {
                let result = CollectedResult::AtServer(bytes.len() as u32);
                push_collected(entries, &Collected { call_id, status, result });
                session.retain(call_id, bytes);
                continue;
            }
            let result = CollectedResult::Here(cut(&bytes, room));
            push_collected(entries, &Collected { call_id, status, result });
        }
        let at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, entries);
        let len_bytes = entries.len();
        entries.clear();
        Ok(Answer::ok(len_bytes, len_bytes))
    }
}

/// Truncates `bytes` to the slot: a result always fits, an error's text may be cut.
fn cut(bytes: &[u8], room: usize) -> &[u8] {
    let longest = (room - collected_bytes(0)) & !7;
    let mut len_bytes = bytes.len().min(longest);
    if let Ok(text) = std::str::from_utf8(bytes) {
        while !text.is_char_boundary(len_bytes) {
            len_bytes -= 1;
        }
    }
    &bytes[..len_bytes]
}
