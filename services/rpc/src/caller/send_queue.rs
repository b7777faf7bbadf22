//! Requests and releases that wait to be sent: requests of calls, and releases of results.

use std::collections::VecDeque;

use super::calls::Calls;

/// Calls and releases in the order in which they are sent.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Calls with messages that have not been sent.
    calls: VecDeque<u16>,
    /// Ids of calls whose results the server may release.
    releases: VecDeque<u64>,
}

impl SendQueue {
    pub fn new(window: u16) -> Self {
        Self { calls: VecDeque::with_capacity(usize::from(window)), releases: VecDeque::new() }
    }

    /// Returns whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.releases.is_empty()
    }

    /// Returns the first call.
    #[inline]
    pub fn first_call(&self) -> Option<u16> {
        self.calls.front().copied()
    }

    /// Appends a call.
    pub fn push_call(&mut self, at: u16) {
        self.calls.push_back(at);
    }

    /// Adds a call that requests segments of its result: before calls that have not begun, since the result occupies
    /// the server's memory; after earlier long results.
    pub fn push_long_result(&mut self, at: u16, calls: &Calls) {
        let is_long = |at: &&u16| calls.records[usize::from(**at)].total_bytes > 0;
        let begun = self.calls.iter().take_while(is_long).count();
        self.calls.insert(begun, at);
    }

    /// Removes a call.
    pub fn remove_call(&mut self, at: u16) {
        self.calls.retain(|waiting| *waiting != at);
    }

    /// Appends the release of a call's result.
    pub fn push_release(&mut self, call_id: u64) {
        self.releases.push_back(call_id);
    }

    /// Removes the first release.
    #[inline]
    pub fn pop_release(&mut self) -> Option<u64> {
        self.releases.pop_front()
    }

    /// Discards everything, and begins with `calls`.
    pub fn restart(&mut self, calls: impl IntoIterator<Item = u16>) {
        self.releases.clear();
        self.calls.clear();
        self.calls.extend(calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::CallContext;

    #[test]
    fn orders_long_results_before_calls_that_have_not_begun() {
        let mut calls = Calls::new(4);
        let begun: Vec<u16> = (0..4).filter_map(|_| calls.begin(1, CallContext::default()).ok()).collect();
        let mut queue = SendQueue::new(4);
        begun[..2].iter().for_each(|at| queue.push_call(*at));
        for at in &begun[2..] {
            calls.get(*at).total_bytes = 100;
            queue.push_long_result(*at, &calls);
        }
        let mut order = Vec::new();
        while let Some(at) = queue.first_call() {
            order.push(at);
            queue.remove_call(at);
        }
        assert_eq!(order, [begun[2], begun[3], begun[0], begun[1]]);
        queue.push_release(7);
        assert!(!queue.is_empty());
        queue.restart([1]);
        assert_eq!((queue.pop_release(), queue.first_call()), (None, Some(1)));
    }
}
