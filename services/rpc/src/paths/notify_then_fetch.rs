//! Responses stored in the server's memory and announced by a SEND, after which the client READs them (RDMA-Memcached,
//! as described in RF-RPC, section 5.1).
//!
//! A notice is the first word of a response: the number of its message, and its length. One READ therefore fetches the
//! complete response.

use super::ResponsePath;
use crate::caller::CallerState;
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::wire::{Mode, Seq};

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
        if end.send_response(seq, NOTICE_BYTES) {
            counters.fetched.increment();
            counters.notices.increment();
        }
    }
}
