//! Responses by SEND into receives that the client has posted.

use farcall_link::LocalSlice;

use super::ResponsePath;
use crate::caller::{CallerState, ResponseCheck, Source};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::wire::{Mode, Seq};

/// The server sends every result. A completion announces it to the client, and wakes a sleeping client.
#[derive(Debug)]
pub struct SendReply;

impl ResponsePath for SendReply {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::Send;
    const FETCHES: bool = false;
    const SENDS: bool = true;

    fn new(_: &CallerConfig) -> Self {
        Self
    }

    #[inline]
    fn mode(&mut self, _method: u16) -> Mode {
        Mode::Reply
    }

    #[inline]
    fn receive(&mut self, caller: &mut CallerState) -> bool {
        caller.receive_sent(self)
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
        let (Some(len_bytes), Some(qp)) = (end.response_bytes(seq), &mut end.dedicated_qp) else { return };
        let offset = end.session.responses.offset(seq);
        counters.replied.increment();
        let posted = qp.connection.send(LocalSlice { region: qp.results_id, offset, len_bytes });
        end.posted_response(seq, posted);
    }
}

/// The client's part.
impl CallerState {
    /// Delivers the oldest message's response if it has arrived. Returns whether it did. A response with a wrong
    /// checksum is fetched instead: the server's own copy may be correct.
    #[inline]
    pub(crate) fn receive_sent<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let Some(end) = &self.end else { return false };
        let Some(at) = end.inbox.front() else { return false };
        let (seq, source) = (self.messages.head, Source::Sent { at });
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
}
