//! Responses fetched by READ, and written by the server for methods that take long: the mode flag of RF-RPC, section
//! 3.2.

use std::collections::HashMap;

use super::{Fetch, Response, ResponsePath, ServerReply};
use crate::caller::Message;
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::responder::{ServerConnection, SharedUdQp};
use crate::tune::Tuner;
use crate::wire::{Mode, ResponseHeader};

/// `rf-rpc`: the client READs results; for methods that take long it requests the server to write them.
#[derive(Debug)]
pub struct FetchThenReply(Modes);

impl ResponsePath for FetchThenReply {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::FetchThenReply;
    const FETCHES: bool = true;

    fn new(config: &CallerConfig) -> Self {
        let first = if config.notify { Mode::ReplyNotify } else { Mode::Fetch };
        Self(Modes::new(first, config.switch_after))
    }

    #[inline]
    fn mode(&mut self, method: u16) -> Mode {
        self.0.method(method).mode
    }

    fn collect_mode(&mut self, is_slow: bool) -> Mode {
        if is_slow && self.0.first.mode == Mode::Fetch { Mode::Reply } else { self.0.first.mode }
    }

    #[inline]
    fn learn(&mut self, message: &Message, header: &ResponseHeader, tuner: &mut Tuner, counters: &Counters) {
        let favours_change = match message.mode {
            Mode::Fetch => tuner.is_slow(message.failed_fetches, header.time_ns()),
            Mode::Reply => header.time_ns().is_some_and(|time_ns| tuner.is_short(time_ns)),
            Mode::ReplyNotify => return,
        };
        match self.0.count(message.method, message.mode, favours_change) {
            Some(Mode::Fetch) => counters.switches_to_fetch.increment(),
            Some(_) => counters.switches_to_reply.increment(),
            None => {}
        }
        tuner.sample(header);
    }

    #[inline]
    fn respond(end: &mut ServerConnection, pair: &mut SharedUdQp, response: Response, counters: &Counters) {
        match response.mode {
            Mode::Fetch => Fetch::respond(end, pair, response, counters),
            Mode::Reply | Mode::ReplyNotify => ServerReply::respond(end, pair, response, counters),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct MethodMode {
    mode: Mode,
    /// Number of consecutive calls that favour the other mode.
    streak: u8,
}

/// The mode flags of one client. Only the client changes them; each request's header contains the flag for the server.
#[derive(Debug)]
struct Modes {
    /// Modes of small method numbers, indexed by number.
    low: Box<[MethodMode; LOW]>,
    high: HashMap<u16, MethodMode>,
    first: MethodMode,
    switch_after: u8,
}

const LOW: usize = 64;

impl Modes {
    /// Creates flags in which all methods begin as `first`. `switch_after` consecutive calls change a mode, so that a
    /// single slow call does not.
    fn new(first: Mode, switch_after: u8) -> Self {
        let first = MethodMode { mode: first, streak: 0 };
        Self { low: Box::new([first; LOW]), high: HashMap::new(), first, switch_after: switch_after.max(1) }
    }

    #[inline]
    fn method(&mut self, method: u16) -> &mut MethodMode {
        match self.low.get_mut(usize::from(method)) {
            Some(mode) => mode,
            None => self.high.entry(method).or_insert(self.first),
        }
    }

    /// Counts a call that was made in `mode`. Returns the method's new mode if the call changes it.
    #[inline]
    fn count(&mut self, method: u16, mode: Mode, favours_change: bool) -> Option<Mode> {
        let switch_after = self.switch_after;
        let current = self.method(method);
        // Calls in flight may end after the mode has changed; they do not count for the new mode.
        if current.mode != mode {
            return None;
        }
        if !favours_change {
            current.streak = 0;
            return None;
        }
        current.streak += 1;
        if current.streak < switch_after {
            return None;
        }
        let other = if mode == Mode::Fetch { Mode::Reply } else { Mode::Fetch };
        *current = MethodMode { mode: other, streak: 0 };
        Some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_calls_in_a_row_switch_and_one_does_not() {
        let mut modes = Modes::new(Mode::Fetch, 2);
        for method in [1, 5_000] {
            assert_eq!(modes.count(method, Mode::Fetch, true), None);
            assert_eq!(modes.count(method, Mode::Fetch, false), None);
            assert_eq!(modes.count(method, Mode::Fetch, true), None);
            assert_eq!(modes.count(method, Mode::Fetch, true), Some(Mode::Reply));
            assert_eq!(modes.method(method).mode, Mode::Reply);
            assert_eq!(modes.method(method + 1).mode, Mode::Fetch);
        }
    }

    #[test]
    fn short_times_switch_back() {
        let mut modes = Modes::new(Mode::Fetch, 2);
        modes.count(1, Mode::Fetch, true);
        modes.count(1, Mode::Fetch, true);
        assert_eq!(modes.count(1, Mode::Fetch, true), None, "a late call of the old mode");
        assert_eq!(modes.count(1, Mode::Reply, true), None);
        assert_eq!(modes.count(1, Mode::Reply, false), None);
        assert_eq!(modes.count(1, Mode::Reply, true), None);
        assert_eq!(modes.count(1, Mode::Reply, true), Some(Mode::Fetch));
        assert_eq!(modes.method(1).mode, Mode::Fetch);
    }
}
