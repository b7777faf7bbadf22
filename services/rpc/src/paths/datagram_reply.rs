//! Responses by SEND of a datagram, from the one queue pair of the server thread (HERD, section 4.3).
//!
//! A datagram may be lost, duplicated, or overtake another one. Its number identifies the message that it responds to,
//! and its tail proves that the server of this session sent it. Lost responses are requested again, as over UC.

use super::ResponsePath;
use crate::caller::CallerState;
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::wire::{Mode, Seq};

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
        end.send_datagram(shared_ud_qp, seq, counters);
    }
}
