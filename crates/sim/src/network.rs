//! The network: packets take time, and some are lost, doubled or overtaken.

use std::collections::{BTreeMap, BTreeSet};

use crate::packet::{Frame, Node};
use crate::queue::Event;
use crate::state::State;
use crate::trace::What;

/// What goes wrong between nodes, and how long things take there. Shares are in millionths of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost.
    pub loss_ppm: u32,
    /// Packets that arrive twice.
    pub duplicate_ppm: u32,
    /// Packets that later ones may overtake.
    pub reorder_ppm: u32,
    /// The shortest way, in nanoseconds.
    pub delay_min_ns: u64,
    /// The longest way of a packet that nothing happens to.
    pub delay_max_ns: u64,
    /// How much longer, at most, the way of a second copy or an overtaken packet is.
    pub detour_max_ns: u64,
}

impl Faults {
    /// A network that loses and reorders nothing.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        delay_min_ns: 900,
        delay_max_ns: 1_100,
        detour_max_ns: 20_000,
    };

    /// A network in which retransmission is daily work.
    pub const BAD: Self = Self {
        loss_ppm: 20_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 20_000,
        delay_min_ns: 500,
        delay_max_ns: 4_000,
        detour_max_ns: 30_000,
    };
}

/// Ways between nodes.
pub(crate) struct Network {
    pub(crate) faults: Faults,
    /// Ordered pairs between which nothing passes.
    cut: BTreeSet<(Node, Node)>,
    /// When the last packet that was not overtaken arrives, by ordered pair.
    arrived_by_ns: BTreeMap<(Node, Node), u64>,
}

impl Network {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, cut: BTreeSet::new(), arrived_by_ns: BTreeMap::new() }
    }

    pub(crate) fn is_cut(&self, from: Node, to: Node) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(crate) fn set_cut(&mut self, from: Node, to: Node, is_cut: bool) {
        if is_cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }
}

impl State {
    /// Sends a packet on its way at the present time.
    pub(crate) fn send(&mut self, frame: Frame) {
        let faults = self.network.faults;
        let way = (frame.src, frame.dst);
        let ids = [
            way_number(way),
            u64::from(frame.src_qpn) << 32 | u64::from(frame.packet.dest_qpn),
            u64::from(frame.packet.psn.number()),
        ];
        let note = [ids[0], ids[1], ids[2], u64::from(frame.packet.opcode())];
        self.note(What::Send, note);
        let is_dead = !self.nodes[way.0 as usize].is_alive || !self.nodes[way.1 as usize].is_alive;
        if is_dead || self.network.is_cut(way.0, way.1) || self.network_rng.chance_ppm(faults.loss_ppm) {
            self.note(What::Drop, note);
            return;
        }
        if self.network_rng.chance_ppm(faults.duplicate_ppm) {
            self.note(What::Duplicate, note);
            let at_ns = self.detour_ns();
            self.at(at_ns, Event::Arrive(Box::new(frame.clone())));
        }
        let at_ns = if self.network_rng.chance_ppm(faults.reorder_ppm) {
            self.note(What::Reorder, note);
            self.detour_ns()
        } else {
            let delay_ns = self.network_rng.between(faults.delay_min_ns, faults.delay_max_ns);
            let last = self.network.arrived_by_ns.entry(way).or_default();
            *last = (*last + 1).max(self.now_ns + delay_ns);
            *last
        };
        self.at(at_ns, Event::Arrive(Box::new(frame)));
    }

    fn detour_ns(&mut self) -> u64 {
        let faults = self.network.faults;
        self.now_ns + faults.delay_min_ns + self.network_rng.between(1, faults.detour_max_ns.max(1))
    }

    pub(crate) fn arrive(&mut self, frame: Frame) {
        let note = [
            way_number((frame.src, frame.dst)),
            u64::from(frame.packet.dest_qpn),
            u64::from(frame.packet.psn.number()),
            u64::from(frame.packet.opcode()),
        ];
        let node = self.nodes.get(frame.dst as usize).filter(|node| node.is_alive);
        let qp = node.and_then(|node| node.qps.get(&frame.packet.dest_qpn).copied());
        let Some(qp) = qp else {
            self.note(What::Ignore, note);
            return;
        };
        self.note(What::Arrive, note);
        self.with_qp(qp, |transport, nic| nic.arrived(transport, &frame));
    }
}

fn way_number((from, to): (Node, Node)) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}
