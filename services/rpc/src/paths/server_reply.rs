//! Responses by WRITE into a slot at the client, which polls it.

use super::ResponsePath;
use crate::caller::{CallerState, ResponseCheck, Source};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{DedicatedQp, ServerConnection, SharedUdQp};
use crate::wire::{FirstWord, Imm, Mode, RESPONSE_HEADER_BYTES, Seq, message_bytes};
use farcall_link::{LocalSlice, PostRefused, Remote, Ticket};

/// `server-reply`: the server writes every result.
#[derive(Debug)]
pub struct ServerReply {
    mode: Mode,
}

impl ResponsePath for ServerReply {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::Write;
    const FETCHES: bool = false;

    fn new(config: &CallerConfig) -> Self {
        Self { mode: if config.notify { Mode::ReplyNotify } else { Mode::Reply } }
    }

    #[inline]
    fn mode(&mut self, _method: u16) -> Mode {
        self.mode
    }

    #[inline]
    fn respond(
        end: &mut ServerConnection,
        _: &mut SharedUdQp,
        seq: Seq,
        mode: Mode,
        push: bool,
        counters: &Counters,
    ) {
        end.write_response(seq, push || mode == Mode::ReplyNotify, counters);
    }
}

/// The server's part.
impl ServerConnection {
    /// WRITEs the response in its slot to the client, with a wake-up if `wake` is set.
    #[inline]
    pub(crate) fn write_response(&mut self, seq: Seq, wake: bool, counters: &Counters) {
        let Some(len_bytes) = self.response_bytes(seq) else { return };
        let Some(DedicatedQp { connection, results_id, replies }) = &mut self.dedicated_qp else { return };
        let offset = self.session.responses.offset(seq);
        let piece = LocalSlice { region: *results_id, offset, len_bytes };
        let to = Remote { grant: replies, offset };
        let posted = if wake {
            counters.notified.increment();
            connection.write_imm(piece, to, Imm::Placed.encode())
        } else {
            counters.replied.increment();
            connection.write(piece, to)
        };
        self.posted_response(seq, posted);
    }

    /// Returns the length in bytes of the response in slot `seq`, if it is there.
    #[inline]
    pub(crate) fn response_bytes(&self, seq: Seq) -> Option<usize> {
        let offset = self.session.responses.offset(seq);
        let first = FirstWord::decode(self.session.results.load_relaxed(offset))?;
        (first.seq == seq).then(|| message_bytes(RESPONSE_HEADER_BYTES, first.len_bytes as usize))
    }

    /// Retains the slot of a response until the NIC has read it.
    #[inline]
    pub(crate) fn posted_response(&mut self, seq: Seq, posted: Result<Ticket, PostRefused>) {
        match posted {
            Ok(ticket) => self.tickets[self.session.responses.index(seq)] = ticket,
            // The send queue had room; any other error means a queue pair in the error state, which its completions
            // report.
            Err(error) => {
                let is_full =
                    |qp: &DedicatedQp| qp.connection.failure().is_none() && qp.connection.room() == 0;
                debug_assert!(!self.dedicated_qp.as_ref().is_some_and(is_full), "{error}");
            }
        }
    }
}

/// Number of checks of a written response with a wrong checksum before it is fetched instead.
const CORRUPT_CHECKS_MAX: u32 = 64;
/// Number of responses with a wrong checksum to one request over UC before its call ends.
const CORRUPT_WRITES_MAX: u32 = 8;

/// The client's part.
impl CallerState {
    /// Delivers the oldest message's response if the server has written it. Returns whether it did.
    #[inline]
    pub(crate) fn receive_written<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let seq = self.messages.head;
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
    pub(crate) fn end_if_still_corrupt(&mut self) -> bool {
        let seq = self.messages.head;
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
}
