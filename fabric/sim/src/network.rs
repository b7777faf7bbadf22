//! The network: delay, loss, duplication, reordering and congestion of packets.

use std::collections::{BTreeMap, BTreeSet};

use crate::node::Nodes;
use crate::packet::{Frame, Node};
use crate::queue::Event;
use crate::rng::Stream;
use crate::timeline::Timeline;
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
    faults: Faults,
    random: Stream,
    /// Random numbers of congestion marks.
    marks: Stream,
    /// Bottlenecks by the node after them, and the time at which each has forwarded all of its packets.
    bottlenecks: BTreeMap<Node, (Bottleneck, u64)>,
    /// Ordered pairs of nodes between which no packet passes.
    cut: BTreeSet<(Node, Node)>,
    /// Arrival time of the last packet that was not reordered, by ordered pair of nodes.
    arrived_by_ns: BTreeMap<(Node, Node), u64>,
}

impl Network {
    /// Creates a network; `marks` decides which packets are marked as by congestion, `random` all other faults.
    pub(crate) fn new(faults: Faults, random: Stream, marks: Stream) -> Self {
        let (bottlenecks, cut, arrived_by_ns) = Default::default();
        Self { faults, random, marks, bottlenecks, cut, arrived_by_ns }
    }

    pub(crate) fn faults(&self) -> Faults {
        self.faults
    }

    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
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

    /// Sends a packet at the present time.
    pub(crate) fn send(&mut self, time: &mut Timeline, nodes: &Nodes, mut frame: Frame) {
        let faults = self.faults;
        let way = (frame.src, frame.dst);
        let ids = [
            frame.direction(),
            u64::from(frame.src_qpn) << 32 | u64::from(frame.packet.dest_qpn),
            u64::from(frame.packet.psn.number()),
        ];
        let note = [ids[0], ids[1], ids[2], u64::from(frame.packet.opcode())];
        time.note(RecordKind::Send, note);
        let is_dead = !nodes.is_alive(way.0) || !nodes.is_alive(way.1);
        if is_dead || self.is_cut(way.0, way.1) || self.random.chance_ppm(faults.loss_ppm) {
            time.note(RecordKind::Drop, note);
            return;
        }
        if faults.mark_ppm > 0 && self.marks.chance_ppm(faults.mark_ppm) {
            frame.is_marked = true;
        }
        if self.random.chance_ppm(faults.duplicate_ppm) {
            time.note(RecordKind::Duplicate, note);
            let at_ns = self.detour_ns(time.now_ns());
            time.at(at_ns, Event::Arrive(Box::new(frame.clone())));
        }
        let at_ns = if self.random.chance_ppm(faults.reorder_ppm) {
            time.note(RecordKind::Reorder, note);
            self.detour_ns(time.now_ns())
        } else {
            let delay_ns = self.random.between(faults.delay_min_ns, faults.delay_max_ns);
            let last = self.arrived_by_ns.entry(way).or_default();
            *last = (*last + 1).max(time.now_ns() + delay_ns);
            *last
        };
        let at_ns = self.pass_bottleneck(at_ns, &mut frame);
        time.at(at_ns, Event::Arrive(Box::new(frame)));
    }

    /// Returns the arrival time of a packet that reaches the last port at `at_ns`.
    fn pass_bottleneck(&mut self, at_ns: u64, frame: &mut Frame) -> u64 {
        let Some((bottleneck, free_ns)) = self.bottlenecks.get_mut(&frame.dst) else { return at_ns };
        let queued_bytes = free_ns.saturating_sub(at_ns) * bottleneck.bytes_per_s / 1_000_000_000;
        frame.is_marked |= self.marks.chance_ppm(bottleneck.marked_ppm(queued_bytes));
        let len_bytes = frame.payload.len() as u64 + HEADERS_BYTES;
        *free_ns = at_ns.max(*free_ns) + len_bytes * 1_000_000_000 / bottleneck.bytes_per_s.max(1);
        *free_ns
    }

    fn detour_ns(&mut self, now_ns: u64) -> u64 {
        let faults = self.faults;
        now_ns + faults.delay_min_ns + self.random.between(1, faults.detour_max_ns.max(1))
    }
}
