//! Splitting calls into messages and sending them to the server's mailbox.

use farcall_verbs::{Nanos, with_sources};

use super::calls::{CallContext, State};
use super::messages::{FetchState, Message, MessageKind};
use super::{CallerState, ClientConnection};
use crate::error::Broken;
use crate::paths::{RequestPath, ResponsePath};
use crate::wire::{FirstWord, Form, Mode, RequestFlags, RequestHeader, Seq};

/// Bytes of the two numbers at the start of a part or of a request for a segment.
const NUMBERS_BYTES: usize = 8;
/// Number of send queue slots reserved for READs and wake-ups while requests are sent.
const RESERVED_SLOTS: u32 = 16;

/// Contents of a message except its payload.
struct Draft {
    call: u16,
    call_id: u64,
    method: u16,
    context: CallContext,
    kind: MessageKind,
    flags: RequestFlags,
    /// Numbers in front of the payload: see [`NUMBERS_BYTES`].
    numbers: Option<(u32, u32)>,
}

impl CallerState {
    /// Returns whether one more message may be sent.
    #[inline]
    fn may_send(&mut self) -> bool {
        let Some(end) = &self.end else { return false };
        let allowed = self.messages.window().min(self.credits.max(1));
        if self.messages.outstanding() >= allowed || end.connection.room() <= RESERVED_SLOTS {
            return false;
        }
        // The NIC must have read the previous request of the slot.
        let next = self.messages.next();
        let sent = self.messages.at(next).sent;
        end.connection.is_done(sent)
    }

    /// Returns whether a message can be sent again: its last WRITE must have completed, because the message is
    /// composed in the same memory.
    fn may_send_again(&mut self, seq: Seq) -> bool {
        let sent = self.messages.at(seq).sent;
        let ready =
            |end: &ClientConnection| end.connection.room() > RESERVED_SLOTS && end.connection.is_done(sent);
        self.end.as_ref().is_some_and(ready)
    }

    /// Sends a short request without a copy of it, if no other message waits to be sent.
    #[inline]
    pub(super) fn send_at_once<P: ResponsePath, Q: RequestPath>(
        &mut self,
        path: &mut P,
        at: u16,
        payload: &[u8],
        now: Nanos,
    ) -> bool {
        let idle = self.queue.first_call().is_none() && self.messages.next_to_resend().is_none();
        let fits = self.end.as_ref().is_some_and(|end| payload.len() <= end.requests.capacity());
        if !idle || !fits || self.draining || !self.may_send() {
            return false;
        }
        let draft = self.execute_draft(at, RequestFlags::empty(), None);
        self.calls.get(at).may_be_executed = true;
        self.send::<P, Q>(path, &draft, payload, now);
        true
    }

    #[inline]
    fn execute_draft(&mut self, at: u16, flags: RequestFlags, numbers: Option<(u32, u32)>) -> Draft {
        let record = self.calls.get(at);
        Draft {
            call: at,
            call_id: record.id.0,
            method: record.method,
            context: record.context,
            kind: MessageKind::Execute,
            flags: flags | record.flags,
            numbers,
        }
    }

    /// Sends all messages that may be sent. Returns whether there were any.
    #[inline]
    pub(super) fn pump<P: ResponsePath, Q: RequestPath>(&mut self, path: &mut P, now: Nanos) -> bool {
        if self.queue.is_empty() && self.messages.next_to_resend().is_none() && !self.collecting.is_due(now) {
            return false;
        }
        self.pump_all::<P, Q>(path, now)
    }

    fn pump_all<P: ResponsePath, Q: RequestPath>(&mut self, path: &mut P, now: Nanos) -> bool {
        let mut any = false;
        while let Some(seq) = self.messages.next_to_resend() {
            if !self.may_send_again(seq) {
                return any;
            }
            self.send_again::<Q>(seq, now);
            self.messages.on_resend(seq);
            any = true;
        }
        while self.may_send() {
            if let Some(call_id) = self.queue.pop_release() {
                self.send_release::<P, Q>(path, call_id, now);
            } else if self.collecting.is_due(now) {
                self.send_collect::<P, Q>(path, now);
            } else if let Some(at) = self.queue.first_call() {
                if self.draining && self.calls.get(at).total_bytes == 0 && self.calls.get(at).sent_bytes == 0
                {
                    // The call waits for another connection.
                    break;
                }
                if self.send_next_of::<P, Q>(path, at, now) {
                    // It may no longer be the first: if the connection broke, long results may have begun before it.
                    self.queue.remove_call(at);
                }
            } else {
                break;
            }
            any = true;
        }
        any
    }

    /// Sends the next message of a call. Returns whether it was the last one for now.
    fn send_next_of<P: ResponsePath, Q: RequestPath>(&mut self, path: &mut P, at: u16, now: Nanos) -> bool {
        let Some(end) = &self.end else { return true };
        let (capacity, piece_bytes) = (end.requests.capacity(), end.responses.capacity());
        let record = self.calls.get(at);
        if record.total_bytes > 0 {
            let offset = record.requested_bytes;
            record.requested_bytes += piece_bytes;
            let is_last = record.requested_bytes >= record.total_bytes;
            let numbers = Some((offset as u32, piece_bytes as u32));
            let draft = self.execute_draft(at, RequestFlags::empty(), numbers);
            let draft = Draft { kind: MessageKind::Continue, flags: RequestFlags::CONTINUE, ..draft };
            self.send::<P, Q>(path, &draft, &[], now);
            return is_last;
        }
        // Moved out without a copy, because sending borrows the records.
        let request = std::mem::take(&mut record.request);
        let is_last = if request.len() <= capacity {
            record.may_be_executed = true;
            let draft = self.execute_draft(at, RequestFlags::empty(), None);
            self.send::<P, Q>(path, &draft, &request, now);
            true
        } else {
            let offset = record.sent_bytes;
            let end = request.len().min(offset + capacity - NUMBERS_BYTES);
            let is_last = end == request.len();
            record.sent_bytes = end;
            record.may_be_executed |= is_last;
            let numbers = Some((offset as u32, request.len() as u32));
            let draft = self.execute_draft(at, RequestFlags::PART, numbers);
            let kind = if is_last { MessageKind::Execute } else { MessageKind::Part };
            self.send::<P, Q>(path, &Draft { kind, ..draft }, &request[offset..end], now);
            is_last
        };
        self.calls.get(at).request = request;
        is_last
    }

    fn send_release<P: ResponsePath, Q: RequestPath>(&mut self, path: &mut P, call_id: u64, now: Nanos) {
        let draft = Draft {
            call: u16::MAX,
            call_id,
            method: 0,
            context: CallContext::default(),
            kind: MessageKind::Release,
            flags: RequestFlags::CONTINUE | RequestFlags::CANCEL,
            numbers: Some((0, 0)),
        };
        self.send::<P, Q>(path, &draft, &[], now);
    }

    fn send_collect<P: ResponsePath, Q: RequestPath>(&mut self, path: &mut P, now: Nanos) {
        let mode = path.collect_mode(self.tuner.is_slow(self.collecting.unanswered_requests(), None));
        self.collecting.on_request_sent(self.server_notifies_answers() && mode != Mode::Fetch);
        if self.calls.deferred == 0 {
            return;
        }
        let draft = Draft {
            call: u16::MAX,
            call_id: 0,
            method: 0,
            context: CallContext::default(),
            kind: MessageKind::Collect,
            flags: RequestFlags::COLLECT,
            numbers: None,
        };
        self.counters.collects.increment();
        self.send_in::<Q>(mode, &draft, &[], now);
    }

    /// Returns whether a collect request is in flight.
    pub(super) fn is_collecting(&mut self) -> bool {
        let messages = &mut self.messages;
        messages.numbers().any(|seq| messages.at(seq).kind == MessageKind::Collect)
    }

    /// Selects the form of a message. A message of full form defines the distance between call ids and message numbers
    /// for the messages after it.
    #[inline]
    fn form<Q: RequestPath>(&mut self, draft: &Draft) -> Form {
        let is_compactable = self.end.as_ref().is_some_and(|end| end.compact)
            && !Q::NAMES_SESSION
            && draft.numbers.is_none()
            && draft.context.trace_id == 0;
        let is_known = self.messages.set_call_base(draft.call_id);
        if is_compactable && is_known {
            self.counters.compact.increment();
            return Form::Compact;
        }
        Form::Full
    }

    /// Composes a message in its slot and posts it. Requires that [`CallerState::may_send`] returned `true`.
    #[inline]
    fn send<P: ResponsePath, Q: RequestPath>(
        &mut self,
        path: &mut P,
        draft: &Draft,
        payload: &[u8],
        now: Nanos,
    ) {
        let mode = path.mode(draft.method);
        self.send_in::<Q>(mode, draft, payload, now);
    }

    #[inline]
    fn send_in<Q: RequestPath>(&mut self, mode: Mode, draft: &Draft, payload: &[u8], now: Nanos) {
        let seq = self.messages.next();
        let consumed = self.messages.head();
        let form = self.form::<Q>(draft);
        let Some(end) = self.end.as_mut() else { return };
        let at = end.requests.offset(seq);
        let header_bytes = form.request_header_bytes();
        let mut payload_at = at + header_bytes;
        if let Some((first, second)) = draft.numbers {
            self.local.store_relaxed(payload_at, u64::from(first) | u64::from(second) << 32);
            payload_at += NUMBERS_BYTES;
        }
        self.local.copy_in(payload_at, payload);
        let len_bytes = payload_at + payload.len() - at - header_bytes;
        let mut flags = draft.flags | mode.flags();
        flags.set(RequestFlags::CHECKSUM, end.checksum);
        let header = RequestHeader {
            seq,
            len_bytes: len_bytes as u32,
            form,
            method: draft.method,
            flags,
            consumed,
            call_id: draft.call_id,
            session: end.welcome.session.tag(),
            incarnation: end.welcome.incarnation as u32,
            deadline_us: remaining_us(draft.context, now),
            crc: 0,
            trace_id: draft.context.trace_id,
        };
        end.store_header(at, &header);
        let message =
            Message { call: draft.call, method: draft.method, kind: draft.kind, mode, ..Message::FREE };
        self.messages.push(message);
        if draft.kind.is_of_call() {
            self.calls.get(draft.call).in_flight += 1;
        }
        self.counters.messages.increment();
        self.counters.request_bytes.add(payload.len() as u64);
        self.retransmit.on_send(now);
        self.post::<Q>(header.first());
    }

    #[inline]
    fn post<Q: RequestPath>(&mut self, message: FirstWord) {
        let Some(end) = self.end.as_mut() else { return };
        match Q::post(end, message) {
            Ok(ticket) => self.messages.at(message.seq).sent = ticket,
            Err(error) => self.disconnect(Broken::Verbs(with_sources(&error))),
        }
    }

    /// Sends the oldest message again, unless a complete retransmission is in progress.
    pub(super) fn send_oldest_again<Q: RequestPath>(&mut self, now: Nanos) {
        let oldest = self.messages.head();
        if self.messages.next_to_resend().is_none() && self.may_send_again(oldest) {
            self.send_again::<Q>(oldest, now);
        }
    }

    /// Sends a message again: over a new connection if the server never executed it, or over UC and UD if no response
    /// arrived. A call that was cancelled in the meantime is sent with the cancel flag.
    ///
    /// The server may read the slot while the second WRITE overwrites the first. Number, length and payload are equal.
    /// Deadline and flags are one word each, with the old or the new value; a checksum that covers both does not match
    /// then.
    fn send_again<Q: RequestPath>(&mut self, seq: Seq, now: Nanos) {
        self.counters.resent.increment();
        let message = *self.messages.at(seq);
        let Some(end) = &self.end else { return };
        let at = end.requests.offset(seq);
        let first = FirstWord::decode(self.local.load_relaxed(at));
        let words = first.map(|first| end.header_words(at, first));
        let Some(Ok(mut header)) = words.map(|words| RequestHeader::decode(&words)) else {
            debug_assert!(false, "our own request {} is unreadable", seq.0);
            return;
        };
        if message.kind == MessageKind::Execute {
            let record = self.calls.get(message.call);
            header.deadline_us = remaining_us(record.context, now);
            if record.state != State::Pending {
                header.flags |= RequestFlags::CANCEL;
            }
        }
        header.flags.set(RequestFlags::CHECKSUM, end.checksum);
        header.crc = 0;
        end.store_header(at, &header);
        self.messages.at(seq).fetch = FetchState::None;
        self.post::<Q>(header.first());
    }
}

/// Returns the microseconds until the deadline, rounded up; at least 1 if there is a deadline, because 0 means none.
#[inline]
fn remaining_us(context: CallContext, now: Nanos) -> u32 {
    context.deadline.map_or(0, |deadline| {
        let left_us = deadline.since(now).as_nanos().div_ceil(1_000);
        u32::try_from(left_us).unwrap_or(u32::MAX).max(1)
    })
}
