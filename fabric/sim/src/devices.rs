//! The devices of all nodes, without their queue pairs: what the transport of a queue pair uses.

use std::sync::Arc;

use farcall_verbs::{AhAttr, AsyncEvent, AsyncEventKind};

use crate::arena::Arena;
use crate::channel::{Channel, Descriptor, OpenDevice};
use crate::cq::{Cq, Entry, Pushed};
use crate::memory::Memory;
use crate::network::{Faults, Network};
use crate::node::Nodes;
use crate::packet::{Frame, Node};
use crate::params::Params;
use crate::placement::Placement;
use crate::queue::Event;
use crate::receive::Receive;
use crate::rng::{Purpose, Stream};
use crate::srq::Srq;
use crate::task::Scheduler;
use crate::timeline::Timeline;
use crate::trace::RecordKind;

/// The devices of all nodes, their network, and the time in which they act.
pub(crate) struct Devices {
    pub(crate) params: Arc<Params>,
    pub(crate) scheduler: Scheduler,
    pub(crate) nodes: Nodes,
    pub(crate) network: Network,
    pub(crate) memory: Memory,
    pub(crate) placement: Placement,
    pub(crate) contexts: Arena<OpenDevice>,
    pub(crate) cqs: Arena<Cq>,
    pub(crate) srqs: Arena<Srq>,
    pub(crate) channels: Arena<Channel>,
    pub(crate) ahs: Arena<(Node, AhAttr)>,
    next_pd: u32,
}

impl Devices {
    pub(crate) fn new(seed: u64, params: Params, faults: Faults, keep_records: usize) -> Self {
        let params = Arc::new(params);
        let stream = |purpose| Stream::new(seed, purpose);
        let time = Timeline::new(keep_records);
        Self {
            scheduler: Scheduler::new(time, params.clone(), stream(Purpose::World)),
            nodes: Nodes::default(),
            network: Network::new(faults, stream(Purpose::Network), stream(Purpose::Marks)),
            memory: Memory::default(),
            placement: Placement::new(params.clone(), stream(Purpose::Placement)),
            params,
            contexts: Arena::default(),
            cqs: Arena::default(),
            srqs: Arena::default(),
            channels: Arena::default(),
            ahs: Arena::default(),
            next_pd: 0,
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.scheduler.time.now_ns()
    }

    pub(crate) fn note(&mut self, what: RecordKind, numbers: [u64; 4]) {
        self.scheduler.time.note(what, numbers);
    }

    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.scheduler.time.at(at_ns, event);
    }

    /// Returns a new protection domain.
    pub(crate) fn alloc_pd(&mut self) -> u32 {
        self.next_pd += 1;
        self.next_pd
    }

    pub(crate) fn async_event(&mut self, context: u32, kind: AsyncEventKind, element: u32) {
        if let Some(open) = self.contexts.get_mut(context) {
            let node = open.push(AsyncEvent { kind, element });
            self.scheduler.ready(node, Descriptor::Events(context).fd());
        }
        self.note(RecordKind::Event, [u64::from(context), u64::from(element), 1, 0]);
    }

    /// Appends a completion to its queue.
    pub(crate) fn complete(&mut self, id: u32, entry: Entry, is_solicited: bool) {
        let wc = &entry.wc;
        let numbers = [u64::from(id), u64::from(wc.qp_num) << 32 | u64::from(wc.status.0), wc.wr_id];
        self.note(RecordKind::Complete, [numbers[0], numbers[1], numbers[2], u64::from(wc.byte_len)]);
        let Some(cq) = self.cqs.get_mut(id) else { return };
        let (context, node) = (cq.context(), cq.node());
        match cq.push(entry, is_solicited) {
            Pushed::Ignored => return,
            Pushed::Overrun => {
                self.async_event(context, AsyncEventKind::CqErr, id);
                self.at(self.now_ns(), Event::Overrun { cq: id });
                return;
            }
            Pushed::Queued => {}
            Pushed::Notifies(channel) => self.notify_channel(channel, id),
        }
        self.scheduler.memory_changed(node);
    }

    fn notify_channel(&mut self, channel: u32, cq: u32) {
        if let Some(open) = self.channels.get_mut(channel) {
            let node = open.push(cq);
            self.note(RecordKind::Event, [u64::from(channel), u64::from(cq), 0, 0]);
            self.scheduler.ready(node, Descriptor::Channel(channel).fd());
        }
    }

    /// Discards the completions of a queue pair.
    pub(crate) fn discard_completions(&mut self, cqs: [u32; 2], qp: u32) {
        for cq in cqs {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.discard(qp);
            }
        }
    }

    /// Takes the next receive of a shared queue if `will_do` returns true for it.
    pub(crate) fn take_shared_if(&mut self, id: u32, will_do: impl Fn(&Receive) -> bool) -> Option<Receive> {
        let receive = self.srqs.get_mut(id)?.take_if(will_do)?;
        self.raise_limit_event(id);
        Some(receive)
    }

    /// Raises the limit event, once, if fewer receives remain than the limit.
    pub(crate) fn raise_limit_event(&mut self, id: u32) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        if srq.has_reached_limit() {
            let context = srq.context();
            self.async_event(context, AsyncEventKind::SrqLimitReached, id);
        }
    }

    /// Sends a packet at the present time.
    pub(crate) fn send(&mut self, frame: Frame) {
        self.network.send(&mut self.scheduler.time, &self.nodes, frame);
    }
}
