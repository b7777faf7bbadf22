//! The mode flag of each method (RF-RPC, section 3.2): fetch, or server-reply for methods that take long.

use std::collections::HashMap;

/// A change of mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// To server-reply.
    ToReply,
    /// Back to fetching.
    ToFetch,
}

#[derive(Clone, Copy, Debug, Default)]
struct MethodMode {
    is_reply: bool,
    /// Consecutive calls that speak for the other mode.
    streak: u8,
}

/// The flags of one client. Only it changes them; the server learns them from each request's header.
#[derive(Debug)]
pub struct Modes {
    /// Small method numbers, at once at hand.
    low: Box<[MethodMode; LOW]>,
    high: HashMap<u16, MethodMode>,
    switch_after: u8,
}

const LOW: usize = 64;

impl Modes {
    /// All methods fetch. `switch_after` consecutive calls change that: one unexpectedly long call does not.
    pub fn new(switch_after: u8) -> Self {
        Self {
            low: Box::new([MethodMode::default(); LOW]),
            high: HashMap::new(),
            switch_after: switch_after.max(1),
        }
    }

    fn mode(&mut self, method: u16) -> &mut MethodMode {
        match self.low.get_mut(usize::from(method)) {
            Some(mode) => mode,
            None => self.high.entry(method).or_default(),
        }
    }

    /// Whether the server should write the results of a method.
    #[inline]
    pub fn is_reply(&mut self, method: u16) -> bool {
        self.mode(method).is_reply
    }

    /// After a call that fetched: whether it had more failed fetches than R.
    #[inline]
    pub fn fetched(&mut self, method: u16, was_slow: bool) -> Option<Switch> {
        self.count(method, false, was_slow)
    }

    /// After a call that was replied to: whether the server's processing time was short.
    #[inline]
    pub fn replied(&mut self, method: u16, was_short: bool) -> Option<Switch> {
        self.count(method, true, was_short)
    }

    fn count(&mut self, method: u16, in_reply: bool, speaks_for_change: bool) -> Option<Switch> {
        let switch_after = self.switch_after;
        let mode = self.mode(method);
        // Calls of a window may end after the mode changed: they say nothing about the new one.
        if mode.is_reply != in_reply {
            return None;
        }
        if !speaks_for_change {
            mode.streak = 0;
            return None;
        }
        mode.streak += 1;
        if mode.streak < switch_after {
            return None;
        }
        *mode = MethodMode { is_reply: !in_reply, streak: 0 };
        Some(if in_reply { Switch::ToFetch } else { Switch::ToReply })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_calls_in_a_row_switch_and_one_does_not() {
        let mut modes = Modes::new(2);
        for method in [1, 5_000] {
            assert_eq!(modes.fetched(method, true), None);
            assert_eq!(modes.fetched(method, false), None);
            assert_eq!(modes.fetched(method, true), None);
            assert_eq!(modes.fetched(method, true), Some(Switch::ToReply));
            assert!(modes.is_reply(method) && !modes.is_reply(method + 1));
        }
    }

    #[test]
    fn short_times_switch_back() {
        let mut modes = Modes::new(2);
        modes.fetched(1, true);
        modes.fetched(1, true);
        assert_eq!(modes.fetched(1, true), None, "a late call of the old mode");
        assert_eq!(modes.replied(1, true), None);
        assert_eq!(modes.replied(1, false), None);
        assert_eq!(modes.replied(1, true), None);
        assert_eq!(modes.replied(1, true), Some(Switch::ToFetch));
        assert!(!modes.is_reply(1));
    }
}
