//! Service of one connection: a bounded number of its messages is read, executed and answered.

mod batch;
mod execute;

use std::sync::Arc;

use farcall_stats::{Block, Times};
use farcall_verbs::{Clock, Nanos};

use super::buffered::BufferedTotal;
use super::deferred_calls::DeferredCalls;
use super::deferred_ready::ReadyDeferredCalls;
use super::handler::Handler;
use super::parts::{Part, part_numbers};
use super::session::Session;
use super::{DedicatedQp, ServerConnection, SharedUdQp};
use crate::config::ResponderConfig;
use crate::counters::Counters;
use crate::paths::{DatagramReply, Path, RequestPath, ResponsePath, ServerReply};
use crate::wire::{
    CallBase, Form, Imm, Mode, RESPONSE_HEADER_BYTES, RequestFlags, RequestHeader, ResponseFlags, Status,
};
use execute::Answer;

/// Result of serving a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServeOutcome {
    /// Messages were answered.
    Some,
    /// There is no complete message.
    Nothing,
    /// There is a message, but no room for its answer yet.
    Stalled,
    /// The client violated the protocol; the reason is stored in the connection.
    Violation,
}

/// The functions that serve a connection, compiled for the paths of its plan: one indirect call per batch.
pub(super) struct PathVtable<H, C> {
    pub serve_burst: fn(&mut Engine<H, C>, &mut ServerConnection, Nanos) -> ServeOutcome,
    pub push_due_responses: fn(&mut Engine<H, C>, &mut ServerConnection) -> bool,
    /// `true` if completions announce its requests.
    pub is_completion_driven: bool,
}

/// The part of a responder that all connections share.
pub(super) struct Engine<H, C> {
    pub config: ResponderConfig,
    pub handler: H,
    pub counters: Block<Counters>,
    /// How long the handler took, for one call in eight.
    pub times: Block<Times>,
    pub draining: bool,
    pub clock: C,
    incarnation: u32,
    /// The current message: a private copy of header and payload.
    pub message: Vec<u8>,
    /// A result that does not fit into its slot.
    pub spill: Vec<u8>,
    pub buffered: BufferedTotal,
    pub shared_ud_qp: SharedUdQp,
    pub deferred_calls: DeferredCalls,
}

/// Flags of messages that are not a complete call.
const NO_WHOLE_CALL: RequestFlags =
    RequestFlags::CONTINUE.union(RequestFlags::PART).union(RequestFlags::COLLECT);

impl<H: Handler, C: Clock> Engine<H, C> {
    pub fn new(
        config: ResponderConfig,
        incarnation: u64,
        handler: H,
        clock: C,
        ready: Arc<ReadyDeferredCalls>,
    ) -> Self {
        let counters = Block::new(&format!("rpc server thread {}", config.thread), 0);
        let times = Block::new(&format!("rpc handler {}", config.thread), 0);
        let buffered = BufferedTotal::default();
        Self {
            deferred_calls: DeferredCalls::new(&config, buffered.clone(), ready),
            config,
            handler,
            counters,
            times,
            draining: false,
            clock,
            incarnation: incarnation as u32,
            message: Vec::new(),
            spill: Vec::new(),
            buffered,
            shared_ud_qp: SharedUdQp::default(),
        }
    }

    pub fn path_vtable<P: Path>() -> PathVtable<H, C> {
        PathVtable {
            serve_burst: Self::serve_burst::<P>,
            push_due_responses: Self::push_due_responses::<P>,
            is_completion_driven: P::Request::WAKES,
        }
    }

    /// Serves up to `burst` messages of a connection.
    fn serve_burst<P: Path>(&mut self, end: &mut ServerConnection, now: Nanos) -> ServeOutcome {
        let mut served = ServeOutcome::Nothing;
        for _ in 0..self.config.burst {
            match self.serve_one::<P::Request, P::Response>(end, now) {
                ServeOutcome::Some => served = ServeOutcome::Some,
                ServeOutcome::Nothing => break,
                ended => return ended,
            }
            if !end.has_mail() {
                break;
            }
        }
        served
    }

    #[inline]
    fn serve_one<Q: RequestPath, S: ResponsePath>(
        &mut self,
        end: &mut ServerConnection,
        now: Nanos,
    ) -> ServeOutcome {
        if !S::can_respond(end, &self.shared_ud_qp, end.session.expect) {
            self.counters.stalls.increment();
            return ServeOutcome::Stalled;
        }
        let mut header = match Q::take(end, &mut self.message) {
            Ok(Some(header)) => header,
            Ok(None) => return ServeOutcome::Nothing,
            Err(why) => return self.reply_violation(end, Status::BAD_REQUEST, why),
        };
        match (header.form, end.session.call_base) {
            (Form::Compact, Some(base)) => {
                header.call_id = base.call_id(header.seq);
                self.counters.compact.increment();
            }
            (Form::Compact, None) => return self.reject_compact(end, &header),
            (Form::Full, _) => {
                if header.session != end.session.id.tag() || header.incarnation != self.incarnation {
                    return self.reject_session(end, &header);
                }
                end.session.call_base = Some(CallBase::of(header.seq, header.call_id));
            }
        }
        self.counters.messages.increment();
        self.counters.request_bytes.add(u64::from(header.len_bytes));
        let answer = if header.flags.intersects(NO_WHOLE_CALL) {
            self.serve_partial(end, &header, now)
        } else {
            end.session.incoming.discard();
            self.execute(end, &header, None, now)
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return self.reply_violation(end, Status::BAD_REQUEST, why),
        };
        self.answer::<S>(end, header.seq, header.mode(), &answer);
        ServeOutcome::Some
    }

    /// Pushes the requested responses of executed messages, each with a wake-up. Returns whether all are sent. Those
    /// of other messages are pushed after their execution.
    fn push_due_responses<P: Path>(&mut self, end: &mut ServerConnection) -> bool {
        let is_woken = self.wake_client(end);
        let Some((mut seq, stop)) = end.push_due else { return is_woken };
        while seq.is_before(stop) && seq.is_before(end.session.expect) {
            if !P::Response::can_respond(end, &self.shared_ud_qp, seq) {
                end.push_due = Some((seq, stop));
                return false;
            }
            P::Response::respond(end, &mut self.shared_ud_qp, seq, Mode::ReplyNotify, true, &self.counters);
            seq = seq.next();
        }
        end.push_due = None;
        is_woken
    }

    /// Wakes the client if a wake-up is due. Over UD the wake-up is a repetition of the newest response. Returns
    /// `false` if the send queue had no room.
    pub(super) fn wake_client(&mut self, end: &mut ServerConnection) -> bool {
        if !end.notify_due {
            return true;
        }
        let newest = end.session.expect.before();
        if let Some(DedicatedQp { connection, replies, .. }) = &mut end.dedicated_qp {
            if connection.room() == 0 {
                return false;
            }
            // An error here means a queue pair in the error state, which its completions report.
            let _ = connection.kick(replies, Imm::Answered.encode());
        } else {
            if !DatagramReply::can_respond(end, &self.shared_ud_qp, newest) {
                return false;
            }
            DatagramReply::respond(end, &mut self.shared_ud_qp, newest, Mode::Reply, true, &self.counters);
        }
        self.counters.answers_told.increment();
        end.notify_due = false;
        true
    }

    /// Handles a message that is not a complete call.
    #[cold]
    fn serve_partial(
        &mut self,
        end: &mut ServerConnection,
        header: &RequestHeader,
        now: Nanos,
    ) -> Result<Answer, String> {
        if header.flags.contains(RequestFlags::CONTINUE) {
            return self.continue_result(end, header);
        }
        if header.flags.contains(RequestFlags::COLLECT) {
            return self.collect(end, header);
        }
        let payload = &self.message[header.first().request_header_bytes()..];
        let incoming = &mut end.session.incoming;
        match incoming.take_part(header, payload, &self.config, &self.buffered, now)? {
            Part::Acknowledged => Ok(Answer::ACK),
            Part::Refused(status, text) => Ok(self.refuse(end, status, &text)),
            Part::Last(whole) => self.execute(end, header, Some(whole), now),
        }
    }

    /// Returns a segment of a stored result, or releases the result.
    fn continue_result(
        &mut self,
        end: &mut ServerConnection,
        header: &RequestHeader,
    ) -> Result<Answer, String> {
        let (offset, longest, rest) = part_numbers(&self.message[header.first().request_header_bytes()..])?;
        if !rest.is_empty() {
            return Err(format!("message {}: a continuation with a payload", header.seq.0));
        }
        let session = &mut end.session;
        if header.flags.contains(RequestFlags::CANCEL) {
            if !session.retained.release(header.call_id) && session.deferred.cancel(header.call_id) {
                self.counters.cancelled.increment();
            }
            return Ok(Answer::ACK);
        }
        let Some(bytes) = session.retained.get(header.call_id) else {
            return Ok(self.refuse(end, Status::RESULT_GONE, ""));
        };
        let total_bytes = bytes.len();
        if offset > total_bytes {
            return Err(format!("message {}: asks for byte {offset} of {total_bytes}", header.seq.0));
        }
        let len_bytes = longest.min(session.responses.capacity()).min(total_bytes - offset);
        let at = session.responses.offset(header.seq) + RESPONSE_HEADER_BYTES;
        session.results.copy_in(at, &bytes[offset..offset + len_bytes]);
        let is_last = offset + len_bytes == total_bytes;
        if is_last {
            // The last segments are in slots, which retain them until the client has received them.
            session.retained.release(header.call_id);
        }
        let flags = if is_last { ResponseFlags::empty() } else { ResponseFlags::MORE };
        Ok(Answer { flags, ..Answer::ok(len_bytes, total_bytes) })
    }

    /// Returns the results of answered calls, as many as fit into the slot.
    fn collect(&mut self, end: &mut ServerConnection, header: &RequestHeader) -> Result<Answer, String> {
        if header.len_bytes > 0 {
            return Err(format!("message {}: collects, with a payload", header.seq.0));
        }
        if header.mode() != Mode::Fetch {
            // The wake-up is for answers that are not given yet. The client requests answers that do not fit again at
            // once.
            end.enable_notify();
        }
        let Session { responses, results, retained, deferred, .. } = &mut end.session;
        let result_bytes_max = self.config.result_bytes_max as usize;
        let retain = |call_id, bytes| retained.push(call_id, bytes);
        deferred.collect(&mut self.spill, responses.capacity(), &self.buffered, result_bytes_max, retain);
        results.copy_in(responses.offset(header.seq) + RESPONSE_HEADER_BYTES, &self.spill);
        let len_bytes = self.spill.len();
        self.spill.clear();
        Ok(Answer::ok(len_bytes, len_bytes))
    }

    #[cold]
    fn reject_session(&mut self, end: &mut ServerConnection, header: &RequestHeader) -> ServeOutcome {
        let why = format!(
            "message {} is of session {:#x}, incarnation {:#x}; here is session {:#x}, incarnation {:#x}",
            header.seq.0,
            header.session,
            header.incarnation,
            end.session.id.tag(),
            self.incarnation
        );
        self.reply_violation(end, Status::WRONG_SESSION, why)
    }

    #[cold]
    fn reject_compact(&mut self, end: &mut ServerConnection, header: &RequestHeader) -> ServeOutcome {
        let why = format!("message {}: of compact form, and none of full form came before", header.seq.0);
        self.reply_violation(end, Status::BAD_REQUEST, why)
    }

    /// Replies once to a message that violates the protocol, by WRITE, or as a datagram if all results are datagrams.
    /// The connection is then closed.
    #[cold]
    fn reply_violation(&mut self, end: &mut ServerConnection, status: Status, why: String) -> ServeOutcome {
        let answer = self.refuse(end, status, &why);
        let (seq, mode) = (end.session.expect, Mode::ReplyNotify);
        if end.reply_to.is_some() {
            self.answer::<DatagramReply>(end, seq, mode, &answer);
        } else {
            self.answer::<ServerReply>(end, seq, mode, &answer);
        }
        end.violation = Some(why);
        ServeOutcome::Violation
    }
}
