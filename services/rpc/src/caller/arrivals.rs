//! Arrival of responses that the server writes, sends, or announces.

use farcall_link::Datagrams;

use super::CallerState;
use super::connection::{ResponseCheck, Source};
use super::datagrams::{DatagramResponses, ReceivedResponse};
use super::messages::FetchState;
use crate::paths::ResponsePath;
use crate::wire::{FirstWord, Form, Mode, RESPONSE_HEADER_BYTES, Seq, message_bytes};

/// Number of checks of a written response with a wrong checksum before it is fetched instead.
const CORRUPT_CHECKS_MAX: u32 = 64;
/// Number of responses with a wrong checksum to one request over UC before its call ends.
const CORRUPT_WRITES_MAX: u32 = 8;

impl CallerState {
    /// Delivers the oldest message's response if the server has written it. Returns whether it did.
    #[inline]
    pub(crate) fn receive_written<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let seq = self.messages.head();
        let Some(end) = &self.end else { return false };
        match end.check(seq, Source::Written, usize::MAX) {
            ResponseCheck::Complete(header) => {
                let is_reply = self.messages.at(seq).mode == Mode::Reply;
                let counter = if is_reply { &self.counters.replied } else { &self.counters.notified };
                counter.increment();
                self.take(path, seq, &header, Source::Written);
                return true;
            }
            ResponseCheck::Invalid(why) => self.disconnect_at(seq, &why),
            ResponseCheck::Corrupt => self.written_corrupt(seq),
            ResponseCheck::NotReady { .. } | ResponseCheck::Longer(_) => {}
        }
        false
    }

    /// Counts a corrupt response. After [`CORRUPT_CHECKS_MAX`] checks it is fetched, because the server's own copy may
    /// be correct.
    #[cold]
    fn written_corrupt(&mut self, seq: Seq) {
        let is_reliable = self.is_reliable();
        let message = self.messages.at(seq);
        message.corrupt_checks += 1;
        if message.corrupt_checks == CORRUPT_CHECKS_MAX && is_reliable {
            message.corrupt_checks = 0;
            message.switch_to_fetch();
        }
    }

    /// Over UC a response cannot be READ, but the server writes it again on every request. Called before such a
    /// request: checks whether the oldest response is corrupt, and ends its call after [`CORRUPT_WRITES_MAX`] corrupt
    /// responses. Returns whether it ended the call.
    pub(super) fn end_if_still_corrupt(&mut self) -> bool {
        let seq = self.messages.head();
        let message = self.messages.at(seq);
        if std::mem::take(&mut message.corrupt_checks) == 0 {
            return false;
        }
        message.failed_fetches += 1;
        let is_enough = message.failed_fetches == CORRUPT_WRITES_MAX;
        if is_enough {
            self.end_corrupt(seq, CORRUPT_WRITES_MAX);
        } else {
            self.clear_written(seq);
        }
        is_enough
    }

    /// Clears the response slot. The request or the new response may be lost, and the old response must not count
    /// again.
    fn clear_written(&mut self, seq: Seq) {
        if let Some(end) = self.end.as_ref().filter(|end| end.datagram_responses.is_none()) {
            end.replies.store_relaxed(end.responses.offset(seq), 0);
        }
    }

    /// Delivers the oldest message's response if it has arrived by SEND. Returns whether it did. A response with a wrong
    /// checksum is fetched instead: the server's own copy may be correct.
    #[inline]
    pub(crate) fn receive_sent<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let Some(end) = &self.end else { return false };
        let Some(at) = end.inbox.front() else { return false };
        let (seq, source) = (self.messages.head(), Source::Sent { at });
        let checked = end.check(seq, source, usize::MAX);
        let is_taken = matches!(checked, ResponseCheck::Complete(_));
        match checked {
            ResponseCheck::Complete(header) => {
                self.counters.replied.increment();
                self.take(path, seq, &header, source);
            }
            ResponseCheck::Corrupt => self.messages.at(seq).switch_to_fetch(),
            ResponseCheck::Invalid(why) => self.disconnect_at(seq, &why),
            ResponseCheck::NotReady { .. } | ResponseCheck::Longer(_) => {
                self.disconnect_at(seq, "what was sent is another one, or not whole");
            }
        }
        if let Some(end) = &mut self.end {
            end.inbox.repost(&mut end.connection);
        }
        is_taken
    }

    /// READs the announced responses, several at a time. The length in a notice only determines how much to READ; the
    /// response's own header determines its length.
    #[inline]
    pub(crate) fn fetch_announced(&mut self) {
        while let Some(notice) = self.next_notice() {
            let first = FirstWord::decode(notice).filter(|first| self.awaits_notice(first.seq));
            let Some(FirstWord { seq, len_bytes, form: Form::Full }) = first else {
                return self
                    .disconnect_at(self.messages.head(), "a notice of another message, or a second one");
            };
            self.counters.notices.increment();
            self.post_read(seq, 0, message_bytes(RESPONSE_HEADER_BYTES, len_bytes as usize));
            if let Some(end) = &mut self.end {
                end.inbox.repost(&mut end.connection);
            }
        }
    }

    /// Returns the oldest notice, if the send queue has room for a READ.
    #[inline]
    fn next_notice(&self) -> Option<u64> {
        let end = self.end.as_ref().filter(|end| end.connection.room() > 0)?;
        end.inbox.front().map(|at| end.replies.load_acquire(at))
    }

    fn awaits_notice(&mut self, seq: Seq) -> bool {
        let message = self.messages.at(seq);
        let is_next = message.is_written() && message.fetch == FetchState::None;
        is_next && self.messages.contains(seq)
    }

    /// Handles a received datagram. The first response to a message in flight is stored until its message is the
    /// oldest; otherwise the receive is posted again.
    #[inline]
    pub(super) fn datagram_arrived(&mut self, receive: usize, len_bytes: u32) {
        let is_kept = self.store_datagram(receive, len_bytes as usize);
        if let (false, Some(datagram_responses)) = (is_kept, self.datagram_responses()) {
            datagram_responses.repost(receive);
        }
    }

    fn store_datagram(&mut self, receive: usize, len_bytes: usize) -> bool {
        let Some(end) = &self.end else { return false };
        let Some(datagram_responses) = &end.datagram_responses else { return false };
        let at = datagram_responses.offset(receive);
        let bytes = len_bytes.saturating_sub(Datagrams::HEADER_BYTES);
        // Bytes of the receive beyond the datagram's length are those of an earlier datagram, where the tail must not
        // be found.
        let seq = FirstWord::decode(end.replies.load_acquire(at)).map(|first| first.seq);
        let checked = seq.map(|seq| (seq, end.check(seq, Source::Sent { at }, bytes)));
        match checked {
            Some((seq, ResponseCheck::Complete(header))) => {
                let is_first = self.messages.contains(seq)
                    && self.put_arrived(seq, ReceivedResponse { receive, header });
                if !is_first {
                    self.counters.repeated.increment();
                    // Over UD a duplicate is also the server's announcement of a deferred answer.
                    self.on_repeated_response();
                }
                is_first
            }
            Some((seq, ResponseCheck::Corrupt)) => {
                if self.messages.contains(seq) {
                    self.messages.at(seq).corrupt_checks += 1;
                }
                false
            }
            _ => {
                self.counters.strangers.increment();
                false
            }
        }
    }

    fn put_arrived(&mut self, seq: Seq, arrived: ReceivedResponse) -> bool {
        let Some(end) = &mut self.end else { return false };
        let slots = end.responses;
        end.datagram_responses.as_mut().is_some_and(|responses| responses.put(&slots, seq, arrived))
    }

    #[inline]
    fn datagram_responses(&mut self) -> Option<&mut DatagramResponses> {
        self.end.as_mut()?.datagram_responses.as_mut()
    }

    /// Delivers the oldest message's response if it has arrived as a datagram. Returns whether it did.
    #[inline]
    pub(crate) fn receive_datagram<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let seq = self.messages.head();
        let Some(end) = &mut self.end else { return false };
        let Some(datagram_responses) = &mut end.datagram_responses else { return false };
        let Some(ReceivedResponse { receive, header }) = datagram_responses.take(&end.responses, seq) else {
            return false;
        };
        let at = datagram_responses.offset(receive);
        self.counters.replied.increment();
        self.take(path, seq, &header, Source::Sent { at });
        if let Some(datagram_responses) = self.datagram_responses() {
            datagram_responses.repost(receive);
        }
        true
    }
}
