//! Conversion of responses to results. The sources of responses are in [`crate::paths`].

use farcall_verbs::Nanos;

use super::CallerState;
use super::calls::State;
use super::connection::Source;
use super::messages::{FetchState, Message, MessageKind};
use crate::error::{Broken, CallError};
use crate::paths::ResponsePath;
use crate::wire::{ResponseFlags, ResponseHeader, Seq, Status};

impl CallerState {
    /// Handles the responses that have arrived, oldest first. Returns whether there was any.
    #[inline]
    pub(super) fn receive<P: ResponsePath>(&mut self, path: &mut P, now: Nanos) -> bool {
        let mut any = false;
        while self.end.is_some() && !self.messages.is_empty() {
            let head = self.messages.head();
            let message = self.messages.at(head);
            let is_landed = matches!(message.fetch, FetchState::Landed(_));
            let is_taken = (message.is_written() && path.receive(self))
                || (is_landed && self.receive_fetched(path, now));
            if !is_taken {
                break;
            }
            any = true;
            self.fetches.resume();
            self.retransmit.on_response(!self.messages.is_empty(), now);
        }
        any
    }

    #[cold]
    pub(super) fn disconnect_at(&mut self, seq: Seq, why: &str) {
        // While the connection ends, responses are checked once more.
        if self.broken.is_none() {
            self.disconnect(Broken::Protocol(format!("response {}: {why}", seq.0)));
        }
    }

    /// Handles a complete response: delivers its payload to its call, updates the path, and frees its slot.
    #[inline]
    pub(super) fn take<P: ResponsePath>(
        &mut self,
        path: &mut P,
        seq: Seq,
        header: &ResponseHeader,
        source: Source,
    ) {
        self.messages.at(seq).fetch = FetchState::None;
        let message = *self.messages.at(seq);
        self.messages.pop();
        self.credits = u32::from(header.credits);
        if message.kind == MessageKind::Execute && !header.flags.contains(ResponseFlags::ERROR) {
            path.learn(&message, header, &mut self.tuner, &self.counters);
        }
        if message.kind == MessageKind::Collect {
            self.deliver_collected(seq, header, source);
        }
        if message.kind.is_of_call() {
            if self.calls.get(message.call).state == State::Pending {
                self.deliver(seq, &message, header, source);
            } else if message.kind == MessageKind::Execute
                && (header.flags.contains(ResponseFlags::MORE) || header.status == Status::DEFERRED)
            {
                // The call was cancelled: the server can release the rest of the result, or the deferred answer.
                let call_id = self.calls.get(message.call).id.0;
                self.queue.push_release(call_id);
            }
            self.calls.on_message_end(message.call);
        }
    }

    #[inline]
    fn deliver(&mut self, seq: Seq, message: &Message, header: &ResponseHeader, source: Source) {
        let is_error = header.flags.contains(ResponseFlags::ERROR);
        if message.kind == MessageKind::Part && !is_error {
            return;
        }
        if header.status == Status::DEFERRED && message.kind == MessageKind::Execute {
            self.calls.defer(message.call);
            self.collecting.on_deferred();
            return;
        }
        let mut reply = std::mem::take(&mut self.calls.get(message.call).reply);
        if is_error {
            reply.clear();
        }
        if let Some(end) = &self.end {
            end.append_payload(seq, header, source, &mut reply);
        }
        self.calls.get(message.call).reply = reply;
        if is_error {
            self.deliver_error(message.call, header);
            return;
        }
        self.counters.result_bytes.add(u64::from(header.len_bytes));
        if message.kind == MessageKind::Execute && header.flags.contains(ResponseFlags::MORE) {
            self.begin_long_result(message.call, header.total_len_bytes as usize);
            return;
        }
        let record = self.calls.get(message.call);
        if record.reply.len() >= record.total_bytes {
            self.calls.finish(message.call, None);
        }
    }

    /// Begins a result of several segments, of which the first may have been received.
    #[cold]
    pub(super) fn begin_long_result(&mut self, call: u16, total_bytes: usize) {
        let max_bytes = self.config.result_bytes_max as usize;
        let record = self.calls.get(call);
        if total_bytes > max_bytes {
            let id = record.id.0;
            self.queue.push_release(id);
            self.calls.finish(call, Some(CallError::ResultTooLarge { len_bytes: total_bytes, max_bytes }));
            return;
        }
        record.total_bytes = total_bytes;
        record.requested_bytes = record.reply.len();
        record.reply.reserve_exact(total_bytes.saturating_sub(record.reply.len()));
        self.queue.push_long_result(call, &self.calls);
    }

    #[cold]
    fn deliver_error(&mut self, call: u16, header: &ResponseHeader) {
        self.counters.errors.increment();
        self.queue.remove_call(call);
        let record = self.calls.get(call);
        let error = CallError::of_status(header.status, &record.reply);
        if header.status == Status::GOING_AWAY {
            self.draining = true;
        }
        self.calls.finish(call, Some(error));
    }
}
