//! Completion queues.

use std::collections::VecDeque;

use farcall_verbs::{Notify, Wc};

use crate::packet::Node;

/// Queue slots that a polled completion releases in its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasedSlots {
    /// All sends up to the one with this ordinal.
    SendsTo(u64),
    /// One receive of the queue pair's own queue.
    Receive,
    /// Nothing: the receive belonged to a shared receive queue.
    Nothing,
}

/// A completion in its queue.
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    pub(crate) qp: u32,
    pub(crate) released: ReleasedSlots,
}

/// Effect of a completion on its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// None, because the queue has overrun.
    Ignored,
    /// The queue is full and has overrun now.
    Overrun,
    /// The completion is in the queue.
    Queued,
    /// The completion is in the queue and raises an event of this channel.
    Notifies(u32),
}

/// The device's state of a completion queue.
pub(crate) struct Cq {
    context: u32,
    node: Node,
    depth: u32,
    entries: VecDeque<Entry>,
    channel: Option<u32>,
    armed: Option<Notify>,
    has_overrun: bool,
}

impl Cq {
    pub(crate) fn new((context, node): (u32, Node), depth: u32, channel: Option<u32>) -> Self {
        Self { context, node, depth, entries: VecDeque::new(), channel, armed: None, has_overrun: false }
    }

    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    pub(crate) fn node(&self) -> Node {
        self.node
    }

    pub(crate) fn channel(&self) -> Option<u32> {
        self.channel
    }

    pub(crate) fn has_overrun(&self) -> bool {
        self.has_overrun
    }

    /// Appends a completion.
    pub(crate) fn push(&mut self, entry: Entry, is_solicited: bool) -> Pushed {
        if self.has_overrun {
            return Pushed::Ignored;
        }
        if self.entries.len() >= self.depth as usize {
            self.has_overrun = true;
            return Pushed::Overrun;
        }
        let is_event = match self.armed {
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => is_solicited || !entry.wc.status.is_success(),
            None => false,
        };
        self.entries.push_back(entry);
        if !is_event {
            return Pushed::Queued;
        }
        self.armed = None;
        self.channel.map_or(Pushed::Queued, Pushed::Notifies)
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// Requests an event for the next completion. A request for solicited completions does not weaken an earlier
    /// request for any completion.
    pub(crate) fn arm(&mut self, notify: Notify) {
        if self.armed != Some(Notify::Any) {
            self.armed = Some(notify);
        }
    }

    /// Discards the completions of a queue pair.
    pub(crate) fn discard(&mut self, qp: u32) {
        self.entries.retain(|entry| entry.qp != qp);
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::{WcOpcode, WcStatus};

    use super::*;

    fn entry(status: WcStatus) -> Entry {
        Entry { wc: Wc::ended(0, 1, WcOpcode::SEND, status), qp: 1, released: ReleasedSlots::SendsTo(0) }
    }

    #[test]
    fn a_weaker_request_does_not_replace_a_stronger_one() {
        let mut cq = Cq::new((0, 0), 8, Some(5));
        assert_eq!(cq.push(entry(WcStatus::SUCCESS), true), Pushed::Queued);
        cq.arm(Notify::Solicited);
        assert_eq!(cq.push(entry(WcStatus::SUCCESS), false), Pushed::Queued);
        assert_eq!(cq.push(entry(WcStatus::WR_FLUSH_ERR), false), Pushed::Notifies(5));
        assert_eq!(cq.push(entry(WcStatus::WR_FLUSH_ERR), false), Pushed::Queued, "one event a request");
        cq.arm(Notify::Any);
        cq.arm(Notify::Solicited);
        assert_eq!(cq.push(entry(WcStatus::SUCCESS), false), Pushed::Notifies(5));
    }

    #[test]
    fn a_full_queue_overruns_once() {
        let mut cq = Cq::new((0, 0), 1, None);
        assert_eq!(cq.push(entry(WcStatus::SUCCESS), false), Pushed::Queued);
        assert_eq!(cq.push(entry(WcStatus::SUCCESS), false), Pushed::Overrun);
        assert!(cq.pop().is_some() && cq.has_overrun());
        assert_eq!(cq.push(entry(WcStatus::SUCCESS), false), Pushed::Ignored);
    }
}
