//! The network: delay, loss, duplication, reordering and congestion of packets.

use std::collections::{BTreeMap, BTreeSet};

use crate::packet::{Frame, Node};
use crate::queue::Event;
use crate::state::State;
use crate::trace::RecordKind;

/// Faults and delays between nodes. Rates are in millionths of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Rate of lost packets.
    pub loss_ppm: u32,
    /// Rate of duplicated packets.
    pub duplicate_ppm: u32,
    /// Rate of packets that later ones may overtake.
    pub reorder_ppm: u32,
    /// Rate of packets that are marked as if they had met congestion.
    pub mark_ppm: u32,
    /// Minimum delay in nanoseconds.
    pub delay_min_ns: u64,
    /// Maximum delay in nanoseconds of a packet without faults.
    pub delay_max_ns: u64,
    /// Maximum additional delay in nanoseconds of a duplicate or an overtaken packet.
    pub detour_max_ns: u64,
}

impl Faults {
    /// A network without loss and reordering.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        mark_ppm: 0,
        delay_min_ns: 900,
        delay_max_ns: 1_100,
        detour_max_ns: 20_000,
    };

    /// A network in which retransmissions are frequent.
    pub const BAD: Self = Self {
        loss_ppm: 20_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 20_000,
        mark_ppm: 10_000,
        delay_min_ns: 500,
        delay_max_ns: 4_000,
        detour_max_ns: 30_000,
    };
}

/// The last port before a node, if it is slower than its senders: packets queue in it, and are marked as by the
/// congestion point of DCQCN ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3.1). It
/// drops no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// Throughput in bytes per second.
    pub bytes_per_s: u64,
    /// Queue length in bytes up to which no packet is marked: K_min.
    pub mark_min_bytes: u64,
    /// Queue length in bytes above which every packet is marked: K_max.
    pub mark_max_bytes: u64,
    /// Between these lengths the rate of marked packets increases from 0 to this value, in millionths: P_max.
    pub mark_max_ppm: u32,
}

impl Bottleneck {
    /// Returns the rate of marked packets, in millionths.
    fn marked_ppm(&self, queued_bytes: u64) -> u32 {
        if queued_bytes > self.mark_max_bytes {
            return 1_000_000;
        }
        let above_bytes = queued_bytes.saturating_sub(self.mark_min_bytes);
        let range_bytes = self.mark_max_bytes.saturating_sub(self.mark_min_bytes).max(1);
        (above_bytes * u64::from(self.mark_max_ppm) / range_bytes) as u32
    }
}

/// Length that counts for a packet in a bottleneck in addition to its payload: approximately its headers.
const HEADERS_BYTES: u64 = 64;

/// State of the network between nodes.
pub(crate) struct Network {
    pub(crate) faults: Faults,
    /// Bottlenecks by the node after them, and the time at which each has forwarded all of its packets.
    bottlenecks: BTreeMap<Node, (Bottleneck, u64)>,
    /// Ordered pairs of nodes between which no packet passes.
    cut: BTreeSet<(Node, Node)>,
    /// Arrival time of the last packet that was not reordered, by ordered pair of nodes.
    arrived_by_ns: BTreeMap<(Node, Node), u64>,
}

impl Network {
    pub(crate) fn new(faults: Faults) -> Self {
        let (bottlenecks, cut, arrived_by_ns) = Default::default();
        Self { faults, bottlenecks, cut, arrived_by_ns }
    }

    pub(crate) fn add_bottleneck(&mut self, to: Node, bottleneck: Bottleneck) {
        self.bottlenecks.insert(to, (bottleneck, 0));
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
    /// Sends a packet at the present time.
    pub(crate) fn send(&mut self, mut frame: Frame) {
        let faults = self.network.faults;
        let way = (frame.src, frame.dst);
        let ids = [
            direction_number(way),
            u64::from(frame.src_qpn) << 32 | u64::from(frame.packet.dest_qpn),
            u64::from(frame.packet.psn.number()),
        ];
        let note = [ids[0], ids[1], ids[2], u64::from(frame.packet.opcode())];
        self.note(RecordKind::Send, note);
        let is_dead = !self.nodes[way.0 as usize].is_alive || !self.nodes[way.1 as usize].is_alive;
        if is_dead || self.network.is_cut(way.0, way.1) || self.network_rng.chance_ppm(faults.loss_ppm) {
            self.note(RecordKind::Drop, note);
            return;
        }
        if faults.mark_ppm > 0 && self.marks_rng.chance_ppm(faults.mark_ppm) {
            frame.is_marked = true;
        }
        if self.network_rng.chance_ppm(faults.duplicate_ppm) {
            self.note(RecordKind::Duplicate, note);
            let at_ns = self.detour_ns();
            self.at(at_ns, Event::Arrive(Box::new(frame.clone())));
        }
        let at_ns = if self.network_rng.chance_ppm(faults.reorder_ppm) {
            self.note(RecordKind::Reorder, note);
            self.detour_ns()
        } else {
            let delay_ns = self.network_rng.between(faults.delay_min_ns, faults.delay_max_ns);
            let last = self.network.arrived_by_ns.entry(way).or_default();
            *last = (*last + 1).max(self.now_ns + delay_ns);
            *last
        };
        let at_ns = self.pass_bottleneck(at_ns, &mut frame);
        self.at(at_ns, Event::Arrive(Box::new(frame)));
    }

    /// Returns the arrival time of a packet that reaches the last port at `at_ns`.
    fn pass_bottleneck(&mut self, at_ns: u64, frame: &mut Frame) -> u64 {
        let Some((bottleneck, free_ns)) = self.network.bottlenecks.get_mut(&frame.dst) else { return at_ns };
        let queued_bytes = free_ns.saturating_sub(at_ns) * bottleneck.bytes_per_s / 1_000_000_000;
        frame.is_marked |= self.marks_rng.chance_ppm(bottleneck.marked_ppm(queued_bytes));
        let len_bytes = frame.payload.len() as u64 + HEADERS_BYTES;
        *free_ns = at_ns.max(*free_ns) + len_bytes * 1_000_000_000 / bottleneck.bytes_per_s.max(1);
        *free_ns
    }

    fn detour_ns(&mut self) -> u64 {
        let faults = self.network.faults;
        self.now_ns + faults.delay_min_ns + self.network_rng.between(1, faults.detour_max_ns.max(1))
    }

    pub(crate) fn arrive(&mut self, frame: Frame) {
        let note = [
            direction_number((frame.src, frame.dst)),
            u64::from(frame.packet.dest_qpn),
            u64::from(frame.packet.psn.number()),
            u64::from(frame.packet.opcode()),
        ];
        let node = self.nodes.get(frame.dst as usize).filter(|node| node.is_alive);
        let qp = node.and_then(|node| node.qps.get(&frame.packet.dest_qpn).copied());
        let Some(qp) = qp else {
            self.note(RecordKind::Ignore, note);
            return;
        };
        self.note(RecordKind::Arrive, note);
        self.with_qp(qp, |transport, nic| nic.arrived(transport, &frame));
    }
}

fn direction_number((from, to): (Node, Node)) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}
