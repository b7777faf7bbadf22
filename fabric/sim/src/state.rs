//! The state of the world: all objects, the clock, the event queue, and the effect of each event.

use std::collections::{BTreeMap, VecDeque};

use farcall_verbs::{AhAttr, AsyncEvent, AsyncEventKind, Gid};

use crate::arena::Arena;
use crate::channel::{Channel, Descriptor};
use crate::cq::Cq;
use crate::memory::Mr;
use crate::network::{Faults, Network};
use crate::packet::Node;
use crate::params::Params;
use crate::pipe::{End, Listening};
use crate::placement::PayloadChunk;
use crate::qp::Qp;
use crate::queue::{Event, EventQueue};
use crate::rng::{Purpose, Stream};
use crate::srq::Srq;
use crate::task::Task;
use crate::trace::{RecordKind, Trace};

/// A host.
pub(crate) struct NodeState {
    pub(crate) is_alive: bool,
    pub(crate) gid: Gid,
    /// Queue pairs by number.
    pub(crate) qps: BTreeMap<u32, u32>,
    pub(crate) next_qpn: u32,
    /// Regions by key.
    pub(crate) keys: BTreeMap<u32, u32>,
    pub(crate) next_key: u32,
    pub(crate) tasks: Vec<u32>,
    /// Listeners by port.
    pub(crate) listeners: BTreeMap<u16, u32>,
}

/// An opened device.
pub(crate) struct OpenDevice {
    pub(crate) node: Node,
    pub(crate) events: VecDeque<AsyncEvent>,
}

pub(crate) struct State {
    pub(crate) now_ns: u64,
    /// The running endpoint, and the CPU time of its calls so far.
    pub(crate) running: Option<u32>,
    pub(crate) debt_ns: u64,
    events: EventQueue,
    pub(crate) params: Params,
    pub(crate) network: Network,
    pub(crate) network_rng: Stream,
    pub(crate) marks_rng: Stream,
    pub(crate) placement_rng: Stream,
    pub(crate) world_rng: Stream,
    pub(crate) pipes_rng: Stream,
    pub(crate) trace: Trace,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) contexts: Arena<OpenDevice>,
    pub(crate) mrs: Arena<Mr>,
    pub(crate) cqs: Arena<Cq>,
    pub(crate) srqs: Arena<Srq>,
    pub(crate) channels: Arena<Channel>,
    pub(crate) qps: Arena<Qp>,
    pub(crate) ahs: Arena<(Node, AhAttr)>,
    pub(crate) chunks: BTreeMap<u64, PayloadChunk>,
    pub(crate) next_chunk: u64,
    /// The sender of the packet that is being handled.
    pub(crate) arriving_from: Node,
    pub(crate) next_pd: u32,
    pub(crate) ends: Arena<End>,
    pub(crate) listeners: Arena<Listening>,
    pub(crate) tasks: Arena<Task>,
}

impl State {
    pub(crate) fn new(seed: u64, params: Params, faults: Faults, keep_records: usize) -> Self {
        Self {
            now_ns: 0,
            running: None,
            debt_ns: 0,
            events: EventQueue::default(),
            params,
            network: Network::new(faults),
            network_rng: Stream::new(seed, Purpose::Network),
            marks_rng: Stream::new(seed, Purpose::Marks),
            placement_rng: Stream::new(seed, Purpose::Placement),
            world_rng: Stream::new(seed, Purpose::World),
            pipes_rng: Stream::new(seed, Purpose::Pipes),
            trace: Trace::new(keep_records),
            nodes: Vec::new(),
            contexts: Arena::default(),
            mrs: Arena::default(),
            cqs: Arena::default(),
            srqs: Arena::default(),
            channels: Arena::default(),
            qps: Arena::default(),
            ahs: Arena::default(),
            chunks: BTreeMap::new(),
            next_chunk: 0,
            arriving_from: 0,
            next_pd: 0,
            ends: Arena::default(),
            listeners: Arena::default(),
            tasks: Arena::default(),
        }
    }

    pub(crate) fn add_node(&mut self) -> Node {
        let number = self.nodes.len() as Node;
        let [_, b, c, d] = (number + 1).to_be_bytes();
        let next_qpn = self.world_rng.between(2, 1 << 16) as u32;
        let next_key = self.world_rng.between(1 << 12, 1 << 28) as u32;
        self.nodes.push(NodeState {
            is_alive: true,
            gid: Gid::from_ipv4([10, b, c, d].into()),
            qps: BTreeMap::new(),
            next_qpn,
            keys: BTreeMap::new(),
            next_key,
            tasks: Vec::new(),
            listeners: BTreeMap::new(),
        });
        number
    }

    pub(crate) fn node_of(&self, gid: Gid) -> Option<Node> {
        self.nodes.iter().position(|node| node.gid == gid).map(|number| number as Node)
    }

    /// Adds to the CPU time of the running endpoint.
    pub(crate) fn charge(&mut self, ns: u64) {
        if self.running.is_some() {
            self.debt_ns += ns;
        }
    }

    /// Returns the time at which an action of the running endpoint takes effect.
    pub(crate) fn effect_ns(&self) -> u64 {
        self.now_ns + self.debt_ns
    }

    pub(crate) fn note(&mut self, what: RecordKind, numbers: [u64; 4]) {
        self.trace.note(self.now_ns, what, numbers);
    }

    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.events.push(at_ns.max(self.now_ns), event);
    }

    pub(crate) fn next_at_ns(&self) -> Option<u64> {
        self.events.next_at_ns()
    }

    pub(crate) fn async_event(&mut self, context: u32, kind: AsyncEventKind, element: u32) {
        if let Some(open) = self.contexts.get_mut(context) {
            open.events.push_back(AsyncEvent { kind, element });
            let node = open.node;
            self.ready(node, Descriptor::Events(context).fd());
        }
        self.note(RecordKind::Event, [u64::from(context), u64::from(element), 1, 0]);
    }

    /// Advances the time to the next event and handles it. Returns the endpoint to run if the event was a step; `None`
    /// if there is no event.
    pub(crate) fn handle_next_event(&mut self) -> Option<Option<u32>> {
        let (at_ns, event) = self.events.pop()?;
        self.now_ns = at_ns;
        match event {
            Event::Arrive(packet) => self.arrive(*packet),
            Event::Pump { qp } => self.with_qp(qp, |transport, nic| nic.pump(transport)).unwrap_or_default(),
            Event::Timer { qp, timer, generation } => {
                self.with_qp(qp, |transport, nic| nic.timer_ends(transport, timer, generation))
                    .unwrap_or_default();
            }
            Event::Accessed { qp, token } => {
                self.with_qp(qp, |transport, nic| nic.accessed(transport, token)).unwrap_or_default();
            }
            Event::Respond { qp, incarnation } => {
                self.with_qp(qp, |transport, nic| nic.respond(transport, incarnation)).unwrap_or_default();
            }
            Event::Place { chunk } => self.place_chunk(chunk),
            Event::Overrun { cq } => self.overrun(cq),
            Event::Pipe { end } => self.pipe_event(end),
            Event::Dial { end, attempt } => self.dial_event(end, attempt),
            Event::Step { task, incarnation } => return Some(self.begin_step(task, incarnation)),
        }
        Some(None)
    }
}
