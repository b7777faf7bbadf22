//! Executing a call by the handler and writing the answer into its response slot.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use farcall_verbs::{Clock, Nanos};

use super::{Engine, batch};
use crate::error::HandlerError;
use crate::paths::ResponsePath;
use crate::responder::ServerConnection;
use crate::responder::deferred::Pending;
use crate::responder::deferred_calls::{DeferredCall, HandlerDisposition};
use crate::responder::handler::{Call, Handler, Reply, ResultBuffer, panic_text};
use crate::responder::parts::LongRequest;
use crate::wire::batch::BatchedCalls;
use crate::wire::{
    Mode, RESPONSE_HEADER_BYTES, RequestFlags, RequestHeader, ResponseFlags, ResponseHeader, Seq, Status,
    TIME_UNIT_NS,
};

/// One call in this many is timed, for the histogram and for clients that fetch.
const CALLS_PER_TIMED: u32 = 8;

/// Outcome of a call before it is written into its slot.
pub(super) struct Answer {
    pub status: Status,
    pub flags: ResponseFlags,
    pub len_bytes: usize,
    pub total_bytes: usize,
    pub time_units: u16,
}

impl Answer {
    pub(super) const ACK: Self = Self::ok(0, 0);

    pub(super) const fn ok(len_bytes: usize, total_bytes: usize) -> Self {
        Self { status: Status::OK, flags: ResponseFlags::empty(), len_bytes, total_bytes, time_units: 0 }
    }
}

impl<H: Handler, C: Clock> Engine<H, C> {
    /// Executes a call or a batch, whose payload is that of the current message, or of the assembled request `whole`.
    ///
    /// # Errors
    /// Returns a description of the violation if the message violates the protocol.
    #[inline]
    pub(super) fn execute(
        &mut self,
        end: &mut ServerConnection,
        header: &RequestHeader,
        whole: Option<LongRequest>,
        now: Nanos,
    ) -> Result<Answer, String> {
        let began = whole.as_ref().map_or(now, |whole| whole.began);
        let payload = whole
            .as_ref()
            .map_or(&self.message[header.first().request_header_bytes()..], |whole| &whole.bytes);
        let calls =
            header.flags.contains(RequestFlags::BATCH).then(|| BatchedCalls::decode(payload)).transpose();
        let calls = calls.map_err(|why| format!("message {}: {why}", header.seq.0))?;
        if let Err((status, text)) = self.admit(end, header, began, now) {
            return Ok(self.refuse(end, status, &text));
        }
        let session = &end.session;
        let call = Call {
            method: header.method,
            payload,
            call_id: header.call_id,
            trace_id: header.trace_id,
            deadline: deadline(began, header.deadline_us),
            arrived: began,
            connection: end.id.0,
        };
        let capacity = session.responses.capacity();
        let payload_at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        let max_bytes = self.config.result_bytes_max as usize;
        let buffer = ResultBuffer { payload_at, capacity, max_bytes };
        let mut reply = Reply::new(session, buffer, &mut self.spill, &mut self.deferred_calls);
        let start = is_timed(header).then(|| self.clock.now());
        let handler = &mut self.handler;
        let outcome = match calls {
            Some(calls) => Ok(batch::execute(handler, &self.counters, &call, calls, &mut reply)),
            None => {
                self.counters.calls.increment();
                catch_unwind(AssertUnwindSafe(|| handler.handle(&call, &mut reply)))
            }
        };
        let worked = start.map(|start| self.clock.now().since(start));
        if let Some(worked) = worked
            && is_sampled(header)
        {
            self.times.count(worked);
        }
        let (in_slot, overflown) = (reply.in_slot(), reply.has_overflowed());
        let late = reply.take_late();
        let call = (header.call_id, call.deadline);
        let is_later = !late.is_empty() || !self.deferred_calls.is_immediate();
        let later = match (&outcome, is_later) {
            (_, false) => None,
            (Ok(Ok(())), true) => self.later(end, call, late, in_slot),
            (_, true) => {
                // The handler's error counts, and answers by its token are discarded.
                self.take_deferred().iter().for_each(|pending| pending.cancel());
                None
            }
        };
        let mut answer = match outcome {
            Ok(Ok(())) if later.is_some() => later.unwrap_or(Answer::ACK),
            Ok(Ok(())) if overflown => {
                let text = format!("more than {max_bytes} bytes");
                self.refuse(end, Status::RESULT_TOO_LARGE, &text)
            }
            Ok(Ok(())) => self.finish(end, header.call_id, in_slot),
            Ok(Err(HandlerError { status, message })) => self.refuse(end, status, &message),
            Err(panic) => {
                self.counters.panics.increment();
                self.refuse(end, Status::PANICKED, panic_text(&*panic))
            }
        };
        answer.time_units = worked.map_or(0, time_units);
        Ok(answer)
    }

    /// Returns the immediate answer to a deferred call, or to a batch with deferred calls; `None` if no call is
    /// deferred.
    #[cold]
    fn later(
        &mut self,
        end: &mut ServerConnection,
        (call_id, deadline): (u64, Option<Nanos>),
        late: Vec<Arc<Pending>>,
        in_slot: usize,
    ) -> Option<Answer> {
        if late.is_empty() {
            let pending = self.take_deferred()?;
            self.spill.clear();
            return Some(self.store_deferred(end, DeferredCall::one(call_id, deadline, pending)));
        }
        let session = &end.session;
        let mut results = std::mem::take(&mut self.spill);
        if results.is_empty() {
            let payload_at = session.responses.offset(session.expect) + RESPONSE_HEADER_BYTES;
            session.results.append_to(payload_at, in_slot, &mut results);
        }
        Some(self.store_deferred(end, DeferredCall::batch(call_id, deadline, results, late)))
    }

    /// Returns the state of the current call if the handler has deferred it.
    #[cold]
    fn take_deferred(&mut self) -> Option<Arc<Pending>> {
        match self.deferred_calls.take_disposition() {
            HandlerDisposition::Immediate => None,
            HandlerDisposition::Deferred(pending) => Some(pending),
            HandlerDisposition::Refused => {
                self.counters.deferrals_refused.increment();
                None
            }
        }
    }

    /// Stores a call until it is answered and collected.
    fn store_deferred(&mut self, end: &mut ServerConnection, call: DeferredCall) -> Answer {
        self.counters.deferred.add(call.calls() as u64);
        self.deferred_calls.store(&mut end.session.deferred, call);
        Answer { status: Status::DEFERRED, ..Answer::ACK }
    }

    /// Checks whether a call may be executed.
    #[inline]
    fn admit(
        &self,
        end: &ServerConnection,
        header: &RequestHeader,
        began: Nanos,
        now: Nanos,
    ) -> Result<(), (Status, String)> {
        if header.flags.contains(RequestFlags::CANCEL) {
            return Err((Status::CANCELLED, String::new()));
        }
        if self.draining {
            return Err((Status::GOING_AWAY, String::new()));
        }
        if deadline(began, header.deadline_us).is_some_and(|deadline| now >= deadline) {
            self.counters.deadlines_exceeded.increment();
            return Err((Status::DEADLINE_EXCEEDED, "while its parts came".into()));
        }
        let buffered = self.buffered.bytes();
        if buffered > self.config.buffers_bytes_max {
            return Err((Status::OVERLOADED, format!("{buffered} bytes are kept for all clients")));
        }
        let retained = end.session.retained.bytes();
        if retained > self.config.retained_bytes_max {
            return Err((Status::OVERLOADED, format!("{retained} bytes of results are kept")));
        }
        Ok(())
    }

    /// Leaves as much of the result in the slot as fits, and stores the rest.
    #[inline]
    fn finish(&mut self, end: &mut ServerConnection, call_id: u64, in_slot: usize) -> Answer {
        if self.spill.is_empty() {
            return Answer::ok(in_slot, in_slot);
        }
        let session = &mut end.session;
        let total_bytes = self.spill.len();
        let len_bytes = total_bytes.min(session.responses.capacity());
        let at = session.responses.offset(session.expect) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &self.spill[..len_bytes]);
        if len_bytes == total_bytes {
            self.spill.clear();
            return Answer::ok(len_bytes, total_bytes);
        }
        session.retained.push(call_id, self.buffered.count(std::mem::take(&mut self.spill)));
        Answer { flags: ResponseFlags::MORE, ..Answer::ok(len_bytes, total_bytes) }
    }

    /// Writes an error and its text instead of a result.
    #[cold]
    pub(super) fn refuse(&mut self, end: &ServerConnection, status: Status, text: &str) -> Answer {
        self.spill.clear();
        self.counters.errors.increment();
        let session = &end.session;
        let mut len_bytes = text.len().min(session.responses.capacity());
        while !text.is_char_boundary(len_bytes) {
            len_bytes -= 1;
        }
        let at = session.responses.offset(session.expect) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &text.as_bytes()[..len_bytes]);
        Answer { status, flags: ResponseFlags::ERROR, ..Answer::ok(len_bytes, len_bytes) }
    }

    /// Completes an answer whose payload is in its slot: writes its header, publishes it, and passes it to the
    /// response path.
    #[inline]
    pub(super) fn answer<S: ResponsePath>(
        &mut self,
        end: &mut ServerConnection,
        seq: Seq,
        mode: Mode,
        answer: &Answer,
    ) {
        let session = &end.session;
        let at = session.responses.offset(seq);
        let mut response = ResponseHeader {
            seq,
            len_bytes: answer.len_bytes as u32,
            time_units: answer.time_units,
            flags: answer.flags,
            status: answer.status,
            credits: self.config.credits.min(session.geometry.window),
            total_len_bytes: answer.total_bytes as u32,
            crc: 0,
        };
        if end.checksum {
            response.flags |= ResponseFlags::CHECKSUM;
            let (words, payload_at) = (response.encode(), at + RESPONSE_HEADER_BYTES);
            let words = ResponseHeader::checked_words(&words);
            let (key, len_bytes) = (session.tail_key, answer.len_bytes);
            response.crc = key.checksum_in(&words, &session.results, payload_at, len_bytes);
        }
        let words = response.encode();
        let results = &session.results;
        results.store_relaxed(at + 8, words[1]);
        results.store_relaxed(at + 16, words[2]);
        results.store_relaxed(at + session.responses.tail_at(answer.len_bytes), session.tail_key.tail(seq));
        results.store_release(at, words[0]);
        self.counters.result_bytes.add(answer.len_bytes as u64);
        let push = seq.is_before(end.push_end);
        end.advance();
        S::respond(end, &mut self.shared_ud_qp, seq, mode, push, &self.counters);
    }
}

/// Returns whether the handler's time is measured: always for a client that waits for it to become short, and often
/// enough for a client that collects samples. Two clock reads cost as much as the rest of a short call.
#[inline]
fn is_timed(header: &RequestHeader) -> bool {
    header.mode() != Mode::Fetch || is_sampled(header)
}

/// Returns whether the message is one of those that are timed in every mode. A message with a batch counts as one.
#[inline]
fn is_sampled(header: &RequestHeader) -> bool {
    header.seq.0.is_multiple_of(CALLS_PER_TIMED)
}

#[inline]
fn deadline(began: Nanos, deadline_us: u32) -> Option<Nanos> {
    (deadline_us != 0).then(|| began + Duration::from_micros(u64::from(deadline_us)))
}

#[inline]
fn time_units(worked: Duration) -> u16 {
    u16::try_from((worked.as_nanos() as u64).div_ceil(TIME_UNIT_NS)).unwrap_or(u16::MAX).max(1)
}
