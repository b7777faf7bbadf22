//! Responses by SEND of a datagram, from the one queue pair of the server thread (HERD, section 4.3).
//!
//! A datagram may be lost, duplicated, or overtake another one. Its number identifies the message that it responds to,
//! and its tail proves that the server of this session sent it. Lost responses are requested again, as over UC.

use farcall_link::{Datagrams, LocalSlice};

use super::ResponsePath;
use crate::caller::{CallerState, DatagramResponses, ReceivedResponse, ResponseCheck, Source};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::wire::{FirstWord, Mode, Seq};

/// The server sends every result as a datagram.
#[derive(Debug)]
pub struct DatagramReply;

impl ResponsePath for DatagramReply {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::Datagram;
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
        caller.receive_datagram(self)
    }

    #[inline]
    fn can_respond(end: &ServerConnection, shared_ud_qp: &SharedUdQp, seq: Seq) -> bool {
        shared_ud_qp.has_room_for(end.ticket_of(seq))
    }

    #[inline]
    fn respond(
        end: &mut ServerConnection,
        shared_ud_qp: &mut SharedUdQp,
        seq: Seq,
        _: Mode,
        _push: bool,
        counters: &Counters,
    ) {
        let (Some(len_bytes), Some(to)) = (end.response_bytes(seq), &mut end.reply_to) else { return };
        let piece =
            LocalSlice { region: to.results_id, offset: end.session.responses.offset(seq), len_bytes };
        counters.replied.increment();
        if let Some(ticket) = shared_ud_qp.send(piece, to) {
            end.tickets[end.session.responses.index(seq)] = ticket;
        }
    }
}

/// The client's part.
impl CallerState {
    /// Handles a received datagram. The first response to a message in flight is stored until its message is the
    /// oldest; otherwise the receive is posted again.
    #[inline]
    pub(crate) fn datagram_arrived(&mut self, receive: usize, len_bytes: u32) {
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

    /// Delivers the oldest message's response if it has arrived. Returns whether it did.
    #[inline]
    pub(crate) fn receive_datagram<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let seq = self.messages.head;
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
