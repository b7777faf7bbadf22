//! Responses stored in the server's memory and announced by a SEND, after which the client READs them (RDMA-Memcached,
//! as described in RF-RPC, section 5.1).
//!
//! A notice is the first word of a response: the number of its message, and its length. One READ therefore fetches the
//! complete response.

use farcall_link::LocalSlice;

use super::ResponsePath;
use crate::caller::{CallerState, FetchState};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::wire::{FirstWord, Form, Mode, RESPONSE_HEADER_BYTES, Seq, message_bytes};

/// The server announces every result; the client READs it.
#[derive(Debug)]
pub struct NotifyThenFetch;

/// Length of a notice in bytes.
const NOTICE_BYTES: usize = 8;
/// Length of a receive in bytes: one cache line.
pub(crate) const NOTICE_SLOT_BYTES: u32 = 64;

impl ResponsePath for NotifyThenFetch {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::NotifyThenFetch;
    const FETCHES: bool = false;
    const SENDS: bool = true;

    fn new(_: &CallerConfig) -> Self {
        Self
    }

    #[inline]
    fn mode(&mut self, _method: u16) -> Mode {
        Mode::Reply
    }

    /// Posts READs for announced responses. They are delivered when their READs have completed.
    #[inline]
    fn receive(&mut self, caller: &mut CallerState) -> bool {
        caller.fetch_announced();
        false
    }

    #[inline]
    fn respond(
        end: &mut ServerConnection,
        _: &mut SharedUdQp,
        seq: Seq,
        _: Mode,
        _push: bool,
        counters: &Counters,
    ) {
        let (Some(_), Some(qp)) = (end.response_bytes(seq), &mut end.dedicated_qp) else { return };
        let offset = end.session.responses.offset(seq);
        counters.fetched.increment();
        counters.notices.increment();
        let posted =
            qp.connection.send(LocalSlice { region: qp.results_id, offset, len_bytes: NOTICE_BYTES });
        end.posted_response(seq, posted);
    }
}

/// The client's part.
impl CallerState {
    /// READs the announced responses, several at a time. The length in a notice only determines how much to READ; the
    /// response's own header determines its length.
    #[inline]
    fn fetch_announced(&mut self) {
        while let Some(notice) = self.next_notice() {
            let first = FirstWord::decode(notice).filter(|first| self.awaits_notice(first.seq));
            let Some(FirstWord { seq, len_bytes, form: Form::Full }) = first else {
                return self
                    .disconnect_at(self.messages.head, "a notice of another message, or a second one");
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
}
