//! Responses by SEND into receives that the client has posted.

use super::ResponsePath;
use crate::caller::CallerState;
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
        if end.send_response(seq, usize::MAX) {
            counters.replied.increment();
        }
    }
}
