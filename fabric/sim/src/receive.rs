//! Receive queues: posted receives, of a queue pair's own or a shared queue.

use std::collections::VecDeque;

use farcall_verbs::{Error, RecvRules, RecvWr, Sge};

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<Sge>,
}

impl Receive {
    pub(crate) fn room(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// Receives in the order of posting.
pub(crate) struct ReceiveQueue {
    posted: VecDeque<Receive>,
    rules: RecvRules,
    max_wr: u32,
    /// Number of posted receives that are not known to have completed by a polled completion.
    outstanding: u32,
}

impl ReceiveQueue {
    pub(crate) fn new(rules: RecvRules, max_wr: u32) -> Self {
        Self { posted: VecDeque::new(), rules, max_wr, outstanding: 0 }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.rules, self.max_wr);
    }

    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.rules.check(wr, self.outstanding < self.max_wr)?;
        self.outstanding += 1;
        self.posted.push_back(Receive { wr_id: wr.wr_id, sges: wr.sges().to_vec() });
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    /// Removes and returns the next receive if `will_do` returns true for it.
    pub(crate) fn pop_if(&mut self, will_do: impl Fn(&Receive) -> bool) -> Option<Receive> {
        self.posted.pop_front_if(|receive| will_do(receive))
    }

    /// Releases a slot of the queue.
    pub(crate) fn release(&mut self) {
        self.outstanding -= 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    pub(crate) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Changes the maximum number of receives; returns false if more are outstanding.
    pub(crate) fn resize(&mut self, rules: RecvRules, max_wr: u32) -> bool {
        let fits = self.outstanding <= max_wr;
        if fits {
            (self.rules, self.max_wr) = (rules, max_wr);
        }
        fits
    }
}
