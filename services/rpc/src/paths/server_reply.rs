//! Responses by WRITE into a slot at the client, which polls it.

use super::ResponsePath;
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::wire::{Mode, Seq};

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
