//! Requests by SEND of a datagram, to the one queue pair of the server thread.
//!
//! A datagram may be lost, come twice, or overtake another one. Its session's tag says whose it is; its source and its
//! tail, that the client of this session sent it. It is copied into its slot of the client's mailbox, and waits there
//! for its turn as a WRITE does, so that the receive, which all clients share, is free at once. Only the next number is
//! executed: a request that was executed before is answered again, from the slot of its response. So the client has no
//! other question to ask than its oldest request, once more.

use farcall_link::{PostRefused, Ticket};
use farcall_verbs::Nanos;

use super::{RequestPath, WriteMailbox};
use crate::caller::{CallerState, ClientEnd};
use crate::responder::{Datagram, ServerEnd};
use crate::wire::{FirstWord, Form, RequestHeader, Seq, TAIL_BYTES};

/// The client sends every request as a datagram.
#[derive(Debug)]
pub struct DatagramRequest;

impl RequestPath for DatagramRequest {
    const AXIS: farcall_link::RequestPath = farcall_link::RequestPath::Datagram;
    const WAKES: bool = true;
    /// A datagram has to say of which session it is.
    const NAMES_SESSION: bool = true;

    #[inline]
    fn post(end: &mut ClientEnd, message: FirstWord) -> Result<Ticket, PostRefused> {
        let piece = end.seal(message);
        end.connection.send_datagram(piece)
    }

    fn ask(caller: &mut CallerState, now: Nanos) {
        caller.ask_by_oldest::<Self>(now);
    }

    #[inline]
    fn take(end: &mut ServerEnd, message: &mut Vec<u8>) -> Result<Option<RequestHeader>, String> {
        WriteMailbox::take(end, message)
    }
}

/// What a datagram is to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A request that is to be executed: it is in its slot.
    Waiting,
    /// A request that was executed before.
    Again(Seq),
    /// Nothing that its client sends.
    Strange,
}

impl Datagram<'_> {
    /// The session that it says it is of.
    #[inline]
    pub(crate) fn session_tag(&self) -> u32 {
        self.memory.load_relaxed(self.at + RequestHeader::SESSION_AT) as u32
    }
}

/// The server's half.
impl ServerEnd {
    /// A datagram has come that names this session. `message` is private memory for a copy.
    #[inline]
    pub(crate) fn arrived(&mut self, datagram: &Datagram<'_>, message: &mut Vec<u8>) -> Arrived {
        let Datagram { memory, at, len_bytes: came_bytes } = *datagram;
        let (session, slots) = (&self.session, &self.session.requests);
        let Some(first) = FirstWord::decode(memory.load_relaxed(at)) else { return Arrived::Strange };
        let (seq, whole_bytes) = (first.seq, first.request_bytes());
        // What a receive holds beyond what has come is of an earlier datagram: the tail must not be found there.
        let is_whole = first.form == Form::Full
            && first.len_bytes as usize <= slots.capacity()
            && whole_bytes <= came_bytes
            && memory.load_relaxed(at + whole_bytes - TAIL_BYTES) == session.tail_key.tail(seq);
        if !is_whole {
            return Arrived::Strange;
        }
        if seq.is_before(session.expect) {
            return Arrived::Again(seq);
        }
        message.clear();
        memory.append_to(at, whole_bytes, message);
        let is_ahead = seq.distance_from(session.expect) >= u32::from(session.geometry.window);
        if is_ahead || (self.checksum && !self.is_intact(message, first)) {
            return Arrived::Strange;
        }
        session.mailbox.copy_in(slots.offset(seq), message);
        Arrived::Waiting
    }
}
