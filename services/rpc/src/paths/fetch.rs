//! Responses stored in the server's memory, from which the client READs them (RF-RPC, section 3.2).

use super::ResponsePath;
use crate::caller::Message;
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::tune::Tuner;
use crate::wire::{Mode, ResponseHeader, Seq};

/// `fetch`: the client READs every result. The server writes a result only to a sleeping client that has requested it.
#[derive(Debug)]
pub struct Fetch;

impl ResponsePath for Fetch {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::Fetch;
    const FETCHES: bool = true;

    fn new(_: &CallerConfig) -> Self {
        Self
    }

    #[inline]
    fn mode(&mut self, _method: u16) -> Mode {
        Mode::Fetch
    }

    #[inline]
    fn learn(&mut self, _: &Message, header: &ResponseHeader, tuner: &mut Tuner, _: &Counters) {
        tuner.sample(header);
    }

    #[inline]
    fn respond(
        end: &mut ServerConnection,
        _: &mut SharedUdQp,
        seq: Seq,
        _: Mode,
        push: bool,
        counters: &Counters,
    ) {
        if push {
            end.write_response(seq, true, counters);
        } else {
            counters.fetched.increment();
        }
    }
}
