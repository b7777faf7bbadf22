//! Shared receive queues.

use farcall_verbs::{Error, RecvRules, RecvWr, SrqCap};

use crate::receive::{Receive, ReceiveQueue};

/// The device's state of a shared receive queue.
pub(crate) struct Srq {
    context: u32,
    queue: ReceiveQueue,
    max_sge: u32,
    /// The limit event is raised when fewer receives remain; 0 means not armed.
    limit: u32,
    is_owned: bool,
}

impl Srq {
    pub(crate) fn new(context: u32, max_wr: u32, max_sge: u32) -> Self {
        let queue = ReceiveQueue::new(RecvRules::of_srq(max_wr, max_sge), max_wr);
        Self { context, queue, max_sge, limit: 0, is_owned: true }
    }

    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    pub(crate) fn cap(&self) -> SrqCap {
        SrqCap { max_wr: self.queue.max_wr(), max_sge: self.max_sge, srq_limit: self.limit }
    }

    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.queue.push(wr)
    }

    /// Takes the next receive if `will_do` returns true for it.
    pub(crate) fn take_if(&mut self, will_do: impl Fn(&Receive) -> bool) -> Option<Receive> {
        let receive = self.queue.pop_if(will_do)?;
        self.queue.release();
        Some(receive)
    }

    /// Changes the maximum number of receives; returns false if more are outstanding.
    pub(crate) fn resize(&mut self, max_wr: u32) -> bool {
        self.queue.resize(RecvRules::of_srq(max_wr, self.max_sge), max_wr)
    }

    pub(crate) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Returns whether the limit event is due, once, because fewer receives remain than the limit.
    pub(crate) fn has_reached_limit(&mut self) -> bool {
        if (self.queue.len() as u32) < self.limit {
            self.limit = 0;
            return true;
        }
        false
    }

    /// Records that the program has destroyed its handle.
    pub(crate) fn disown(&mut self) {
        self.is_owned = false;
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.is_owned
    }
}
