//! Requests by SEND of a datagram to the one queue pair of the server thread.
//!
//! A datagram may be lost, duplicated, or overtake another one. Its session tag identifies the session; its source and
//! its tail prove that the client of this session sent it. It is copied into its slot of the client's mailbox, where
//! it waits like a WRITE until it is the next message. The receive, which all clients share, is therefore free at
//! once. Only the next number is executed: a request that was executed before is answered again from the slot of its
//! response. A client therefore requests a missing response by repeating its oldest request.

use farcall_link::{PostRefused, Ticket};
use farcall_verbs::Nanos;

use super::{RequestPath, WriteMailbox};
use crate::caller::{CallerState, ClientConnection};
use crate::responder::{Datagram, ServerConnection};
use crate::wire::{FirstWord, Form, RequestHeader, Seq, TAIL_BYTES};

/// The client sends every request as a datagram.
#[derive(Debug)]
pub struct DatagramRequest;

impl RequestPath for DatagramRequest {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::Datagram;
    const WAKES: bool = true;
    /// A datagram must name its session, because all clients share the queue pair.
    const NAMES_SESSION: bool = true;

    #[inline]
    fn post(end: &mut ClientConnection, message: FirstWord) -> Result<Ticket, PostRefused> {
        let piece = end.seal(message);
        end.connection.send_datagram(piece)
    }

    fn request_missing(caller: &mut CallerState, now: Nanos) {
        caller.request_by_oldest::<Self>(now);
    }

    #[inline]
    fn take(end: &mut ServerConnection, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        WriteMailbox::take(end, message)
    }
}

/// Result of handling a datagram in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivedRequest {
    /// A request to be executed; it has been copied into its slot.
    New,
    /// A request that was executed before.
    Duplicate(Seq),
    /// Not a valid message of the session's client.
    Invalid,
}

impl Datagram<'_> {
    /// Returns the session tag that the datagram contains.
    #[inline]
    pub(crate) fn session_tag(&self) -> u32 {
        self.memory.load_relaxed(self.at + RequestHeader::SESSION_AT) as u32
    }
}

/// The server's part.
impl ServerConnection {
    /// Handles a datagram that names this session. `message` is private memory for a copy.
    #[inline]
    pub(crate) fn arrived(&mut self, datagram: &Datagram<'_>, message: &mut Vec<u8>) -> ReceivedRequest {
        let Datagram { memory, at, len_bytes: received_bytes } = *datagram;
        let (session, slots) = (&self.session, &self.session.requests);
        let Some(first) = FirstWord::decode(memory.load_relaxed(at)) else { return ReceivedRequest::Invalid };
        let (seq, whole_bytes) = (first.seq, first.request_bytes());
        // Bytes of the receive beyond the datagram's length are those of an earlier datagram, where the tail must not
        // be found.
        let is_complete = first.form == Form::Full
            && first.len_bytes as usize <= slots.capacity()
            && whole_bytes <= received_bytes
            && memory.load_relaxed(at + whole_bytes - TAIL_BYTES) == session.tail_key.tail(seq);
        if !is_complete {
            return ReceivedRequest::Invalid;
        }
        if seq.is_before(session.expect) {
            return ReceivedRequest::Duplicate(seq);
        }
        message.clear();
        memory.append_to(at, whole_bytes, message);
        let is_ahead = seq.distance_from(session.expect) >= u32::from(session.geometry.window);
        if is_ahead || (self.checksum && !self.checksum_matches(message, first)) {
            return ReceivedRequest::Invalid;
        }
        session.mailbox.copy_in(slots.offset(seq), message);
        ReceivedRequest::New
    }
}
