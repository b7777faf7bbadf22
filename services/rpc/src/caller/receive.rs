//! Conversion of responses to results. The sources of responses are in [`crate::paths`].

use farcall_link::Region;
use farcall_verbs::Nanos;

use super::CallerState;
use super::calls::State;
use super::collect::CollectEvent;
use super::messages::{FetchState, Message, MessageKind};
use crate::error::{Broken, CallError};
use crate::paths::ResponsePath;
use crate::wire::{
    FirstWord, RESPONSE_HEADER_BYTES, ResponseFlags, ResponseHeader, Seq, Status, TAIL_BYTES, TailKey,
};

/// Memory that a response is read from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// The slots that READs fill.
    Fetched,
    /// The slots that the server writes.
    Written,
    /// A receive slot in the same memory, filled by a SEND.
    Sent {
        /// Offset of the response.
        at: usize,
    },
}

/// Result of checking a response slot.
pub(crate) enum ResponseCheck {
    /// The response has not arrived, or is incomplete.
    NotReady {
        /// `true` if the server's sleep flag is set.
        server_sleeps: bool,
    },
    /// The response has arrived, but exceeds the fetched bytes: this many bytes are needed.
    Longer(usize),
    /// The response is complete.
    Complete(ResponseHeader),
    /// The tail matches, but the checksum does not: the response is not completely placed yet, or corrupt.
    Corrupt,
    /// The slot contains no valid response.
    Invalid(String),
}

impl CallerState {
    /// Handles the responses that have arrived, oldest first. Returns whether there was any.
    #[inline]
    pub(super) fn receive<P: ResponsePath>(&mut self, path: &mut P, now: Nanos) -> bool {
        let mut any = false;
        while self.end.is_some() && !self.messages.is_empty() {
            let head = self.messages.head;
            let message = self.messages.at(head);
            let is_landed = matches!(message.fetch, FetchState::Landed(_));
            let is_taken = (message.is_written() && path.receive(self))
                || (is_landed && self.receive_fetched(path, now));
            if !is_taken {
                break;
            }
            any = true;
            self.next_fetch = None;
            self.retransmit.on_response(!self.messages.is_empty(), now);
        }
        any
    }

    #[cold]
    pub(crate) fn disconnect_at(&mut self, seq: Seq, why: &str) {
        // While the connection ends, responses are checked once more.
        if self.broken.is_none() {
            self.disconnect(Broken::Protocol(format!("response {}: {why}", seq.0)));
        }
    }

    /// Checks a response slot. Reads each word once before it is checked.
    #[inline]
    pub(crate) fn check_response(&self, seq: Seq, source: Source, bytes_there: usize) -> ResponseCheck {
        let Some(end) = &self.end else { return ResponseCheck::NotReady { server_sleeps: false } };
        let slots = &end.responses;
        let (region, at) = match source {
            Source::Fetched => (&end.local, end.fetch_base + slots.offset(seq)),
            Source::Written => (&end.replies, slots.offset(seq)),
            Source::Sent { at } => (&end.replies, at),
        };
        let first_word = region.load_acquire(at);
        let word1 = region.load_relaxed(at + 8);
        let not_yet = ResponseCheck::NotReady { server_sleeps: word1 & ResponseHeader::SLEEPING_BIT != 0 };
        let Some(first) = FirstWord::decode(first_word).filter(|first| first.seq == seq) else {
            return not_yet;
        };
        let len_bytes = first.len_bytes as usize;
        if len_bytes > slots.capacity() {
            return ResponseCheck::Invalid(format!("{len_bytes} bytes in a slot for {}", slots.capacity()));
        }
        let tail_at = slots.tail_at(len_bytes);
        if tail_at + TAIL_BYTES > bytes_there {
            return ResponseCheck::Longer(tail_at + TAIL_BYTES);
        }
        if region.load_acquire(at + tail_at) != end.tail_key.tail(seq) {
            return not_yet;
        }
        let words = [first_word, region.load_relaxed(at + 8), region.load_relaxed(at + 16)];
        match ResponseHeader::decode(&words) {
            // Without ordered placement, only the checksum shows whether the header words have been placed.
            Err(_) if end.checksum => ResponseCheck::Corrupt,
            Ok(header) if end.checksum && !checksum_matches(end.tail_key, &words, &header, region, at) => {
                ResponseCheck::Corrupt
            }
            Ok(header) => ResponseCheck::Complete(header),
            Err(why) => ResponseCheck::Invalid(why.to_string()),
        }
    }

    /// Handles a complete response: delivers its payload to its call, updates the path, and frees its slot.
    #[inline]
    pub(crate) fn take<P: ResponsePath>(
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
                self.to_release.push_back(call_id);
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
            self.collecting.event = CollectEvent::Deferred;
            self.collecting.unanswered_requests = 0;
            return;
        }
        let mut reply = std::mem::take(&mut self.calls.get(message.call).reply);
        if is_error {
            reply.clear();
        }
        self.copy_payload(seq, header, source, &mut reply);
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
            self.to_release.push_back(id);
            self.calls.finish(call, Some(CallError::ResultTooLarge { len_bytes: total_bytes, max_bytes }));
            return;
        }
        record.total_bytes = total_bytes;
        record.requested_bytes = record.reply.len();
        record.reply.reserve_exact(total_bytes.saturating_sub(record.reply.len()));
        // Before calls that have not begun, since the result occupies the server's memory; after earlier long results.
        let records = &self.calls.records;
        let begun = self.to_send.iter().take_while(|at| records[usize::from(**at)].total_bytes > 0).count();
        self.to_send.insert(begun, call);
    }

    #[cold]
    fn deliver_error(&mut self, call: u16, header: &ResponseHeader) {
        self.counters.errors.increment();
        self.to_send.retain(|waiting| *waiting != call);
        let record = self.calls.get(call);
        let error = CallError::of_status(header.status, &record.reply);
        if header.status == Status::GOING_AWAY {
            self.draining = true;
        }
        self.calls.finish(call, Some(error));
    }
}

#[cold]
fn checksum_matches(
    key: TailKey,
    words: &[u64; 3],
    header: &ResponseHeader,
    region: &Region,
    at: usize,
) -> bool {
    let len_bytes = header.len_bytes as usize;
    let crc = || {
        key.checksum_in(&ResponseHeader::checked_words(words), region, at + RESPONSE_HEADER_BYTES, len_bytes)
    };
    header.flags.contains(ResponseFlags::CHECKSUM) && header.crc == crc()
}
