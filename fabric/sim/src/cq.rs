//! Completion queues.

use std::collections::VecDeque;

use farcall_verbs::{AsyncEventKind, Notify, Wc};

use crate::channel::Descriptor;
use crate::packet::Node;
use crate::queue::Event;
use crate::state::State;
use crate::trace::RecordKind;

/// Queue slots that a polled completion releases in its queue pair.
#[derive(Clone, Copy, Debug)]
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

/// The device's state of a completion queue.
pub(crate) struct Cq {
    pub(crate) context: u32,
    pub(crate) node: Node,
    pub(crate) depth: u32,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) channel: Option<u32>,
    pub(crate) armed: Option<Notify>,
    pub(crate) has_overrun: bool,
}

impl Cq {
    pub(crate) fn discard(&mut self, qp: u32) {
        self.entries.retain(|entry| entry.qp != qp);
    }
}

impl State {
    /// Appends a completion to its queue.
    pub(crate) fn complete(&mut self, id: u32, entry: Entry, is_solicited: bool) {
        let wc = &entry.wc;
        let numbers = [u64::from(id), u64::from(wc.qp_num) << 32 | u64::from(wc.status.0), wc.wr_id];
        self.note(RecordKind::Complete, [numbers[0], numbers[1], numbers[2], u64::from(wc.byte_len)]);
        let Some(cq) = self.cqs.get_mut(id) else { return };
        if cq.has_overrun {
            return;
        }
        let (context, node) = (cq.context, cq.node);
        if cq.entries.len() >= cq.depth as usize {
            cq.has_overrun = true;
            self.async_event(context, AsyncEventKind::CqErr, id);
            let now_ns = self.now_ns;
            self.at(now_ns, Event::Overrun { cq: id });
            return;
        }
        let is_event = match cq.armed {
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => is_solicited || !entry.wc.status.is_success(),
            None => false,
        };
        cq.entries.push_back(entry);
        if is_event {
            cq.armed = None;
            if let Some(channel) = cq.channel {
                self.notify_channel(channel, id);
            }
        }
        self.memory_changed(node);
    }

    fn notify_channel(&mut self, channel: u32, cq: u32) {
        if let Some(open) = self.channels.get_mut(channel) {
            open.events.push_back(cq);
            let node = open.node;
            self.note(RecordKind::Event, [u64::from(channel), u64::from(cq), 0, 0]);
            self.ready(node, Descriptor::Channel(channel).fd());
        }
    }

    /// Moves the queue pairs of an overrun queue to the error state.
    pub(crate) fn overrun(&mut self, cq: u32) {
        let victims: Vec<u32> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.device.send_cq == cq || qp.device.recv_cq == cq)
            .map(|(id, _)| id)
            .collect();
        for id in victims {
            self.with_qp(id, |transport, nic| transport.enter_error(nic));
        }
    }
}
