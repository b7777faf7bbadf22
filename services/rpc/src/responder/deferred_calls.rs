//! Deferred calls of a server thread and of its sessions, stored until their answers are collected.
//!
//! The message of a deferred call is answered at once with [`Status::DEFERRED`], so that later messages are executed.
//! The client requests the result by another message. Like any response, the result then stays in its slot until the
//! client has received it. It therefore survives the loss of a connection, and no call is executed twice.

use std::sync::Arc;

use farcall_verbs::Nanos;

use super::buffered::{Buffered, BufferedTotal};
use super::deferred::{Deferred, DeferringThread, Outcome, Pending};
use super::deferred_ready::ReadyDeferredCalls;
use crate::config::ResponderConfig;
use crate::error::HandlerError;
use crate::wire::batch::{entry_bytes, push_entry, take_result};
use crate::wire::{Collected, CollectedResult, Status, collected_bytes, push_collected};

/// State of a server thread for all its deferred calls.
pub(super) struct DeferredCalls {
    thread: DeferringThread,
    open_max: usize,
    of_client_max: usize,
    disposition: HandlerDisposition,
    /// Lower bound of the deadlines of deferred calls.
    next_deadline: Option<Nanos>,
}

/// Whether the handler has deferred the current call.
#[derive(Debug, Default)]
pub(super) enum HandlerDisposition {
    /// Not deferred: the handler answers it directly.
    #[default]
    Immediate,
    /// Deferred.
    Deferred(Arc<Pending>),
    /// The handler tried to defer it, and was refused.
    Refused,
}

impl DeferredCalls {
    pub fn new(config: &ResponderConfig, buffered: BufferedTotal, ready: Arc<ReadyDeferredCalls>) -> Self {
        Self {
            thread: DeferringThread::new(config, buffered, ready),
            open_max: config.deferred_max,
            of_client_max: config.deferred_of_client_max,
            disposition: HandlerDisposition::Immediate,
            next_deadline: None,
        }
    }

    /// Returns whether an answer may still be given. If not, all earlier answers are visible to the caller.
    pub fn may_be_answered(&self) -> bool {
        self.thread.open() > 0
    }

    /// Returns the object that notifies the server thread of answers.
    pub fn ready(&self) -> &ReadyDeferredCalls {
        self.thread.ready()
    }

    /// Returns whether the handler answers the current call directly.
    #[inline]
    pub const fn is_immediate(&self) -> bool {
        matches!(self.disposition, HandlerDisposition::Immediate)
    }

    /// Returns the disposition of the current call, and begins the next one.
    pub fn take_disposition(&mut self) -> HandlerDisposition {
        std::mem::take(&mut self.disposition)
    }

    /// Returns the lower bound of the deadlines of deferred calls.
    pub const fn next_deadline(&self) -> Option<Nanos> {
        self.next_deadline
    }

    /// Stores a deferred call in its session.
    pub fn store(&mut self, session: &mut SessionDeferredCalls, call: DeferredCall) {
        self.next_deadline = Nanos::earlier(self.next_deadline, call.deadline);
        session.calls.push(call);
    }

    /// Ends the calls of all `sessions` whose deadline has passed. Returns the number of them.
    pub fn expire<'a>(
        &mut self,
        sessions: impl Iterator<Item = &'a mut SessionDeferredCalls>,
        now: Nanos,
    ) -> usize {
        let (mut next, mut expired) = (None, 0);
        for SessionDeferredCalls { calls, .. } in sessions {
            let before = calls.len();
            calls.retain(|call| call.deadline.is_none_or(|deadline| now < deadline));
            expired += before - calls.len();
            next = calls.iter().map(|call| call.deadline).fold(next, Nanos::earlier);
        }
        self.next_deadline = next;
        expired
    }

    /// Creates the token of the current call of a session. `of_batch`: number of calls of its batch that were deferred
    /// before.
    ///
    /// # Errors
    /// Returns an error with a message if there are too many deferred calls, or the client cannot collect answers.
    #[cold]
    pub fn defer(
        &mut self,
        session: &SessionDeferredCalls,
        session_tag: u32,
        of_batch: usize,
    ) -> Result<Deferred, HandlerError> {
        if let Err(message) = self.may_defer(session, of_batch) {
            self.disposition = HandlerDisposition::Refused;
            return Err(HandlerError { status: Status::NOT_DEFERRED, message });
        }
        let (token, pending) = self.thread.defer(session_tag);
        self.disposition = HandlerDisposition::Deferred(pending);
        Ok(token)
    }

    fn may_defer(&self, session: &SessionDeferredCalls, of_batch: usize) -> Result<(), String> {
        if matches!(self.disposition, HandlerDisposition::Deferred(_)) {
            return Err("the call has a token already".into());
        }
        if !session.is_supported {
            return Err("the client is of a version that takes no answers that come later".into());
        }
        let (of_client, max) = (session.count() + of_batch, self.of_client_max);
        if of_client >= max {
            return Err(format!("{of_client} calls of this client are to be answered later; at most {max}"));
        }
        let (open, max) = (self.thread.open(), self.open_max);
        if open >= max {
            return Err(format!(
                "{open} calls of this server thread are to be answered later; at most {max}"
            ));
        }
        Ok(())
    }
}

/// The deferred calls of a session, until their answers are collected.
#[derive(Default)]
pub(crate) struct SessionDeferredCalls {
    /// `true` if the client supports deferred answers.
    is_supported: bool,
    calls: Vec<DeferredCall>,
}

impl SessionDeferredCalls {
    /// Sets whether the client supports deferred answers.
    pub const fn set_supported(&mut self, is_supported: bool) {
        self.is_supported = is_supported;
    }

    /// Returns whether the client waits for no deferred answer.
    pub const fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the number of deferred calls that are not answered, or not collected.
    fn count(&self) -> usize {
        self.calls.iter().map(DeferredCall::calls).sum()
    }

    /// Returns whether there is an answer that is not collected.
    pub fn has_answers(&self) -> bool {
        self.calls.iter().any(DeferredCall::is_answered)
    }

    /// Discards a deferred call that the client has cancelled.
    pub fn cancel(&mut self, call_id: u64) -> bool {
        let at = self.calls.iter().position(|deferred| deferred.call_id == call_id);
        at.map(|at| self.calls.remove(at)).is_some()
    }

    /// Appends the results of answered calls to `entries`, as many as fit into `capacity` bytes. A result that is too
    /// long is passed to `retain`.
    pub fn collect(
        &mut self,
        entries: &mut Vec<u8>,
        capacity: usize,
        buffered: &BufferedTotal,
        result_bytes_max: usize,
        mut retain: impl FnMut(u64, Buffered),
    ) {
        let mut place = 0;
        while place < self.calls.len() {
            let call_id = self.calls[place].call_id;
            let Some(outcome) = self.calls[place].outcome(buffered, result_bytes_max) else {
                place += 1;
                continue;
            };
            let (status, room) = (outcome.status, capacity - entries.len());
            let is_long = collected_bytes(outcome.bytes.len()) > room;
            if is_long && !entries.is_empty() {
                break;
            }
            let call = self.calls.remove(place);
            let Some(Outcome { bytes, .. }) = call.into_outcome() else { continue };
            if is_long && status == Status::OK {
                let result = CollectedResult::AtServer(bytes.len() as u32);
                push_collected(entries, &Collected { call_id, status, result });
                retain(call_id, bytes);
                continue;
            }
            let result = CollectedResult::Here(cut(&bytes, room));
            push_collected(entries, &Collected { call_id, status, result });
        }
    }
}

/// A deferred call, or a batch with deferred calls.
pub(super) struct DeferredCall {
    call_id: u64,
    /// When the call expires.
    deadline: Option<Nanos>,
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
    fn cancel(&self) {
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
