//! Queue pairs: the transport of [`farcall_wire`], and the simulated device's state of them.
//!
//! A program has a `SimQp`. [`post`] checks and queues its requests, and [`nic`] is the transport's interface to the
//! device. This file handles the events of a queue pair.

mod nic;
mod post;

use std::collections::BTreeMap;

use farcall_verbs::{Error, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvRules, Result, SendRules, Sge};
use farcall_wire::{QpConfig, Responded, Timer, Token};

use crate::arena::Arena;
use crate::cq::ReleasedSlots;
use crate::devices::Devices;
use crate::packet::{Frame, Node};
use crate::queue::Event;
use crate::receive::{Receive, ReceiveQueue};
use crate::trace::RecordKind;
use nic::Nic;

/// The provider's name.
pub(crate) const PROVIDER: &str = "sim";

/// The transport of a queue pair.
pub(crate) type Transport = farcall_wire::Qp<Posted, Receive>;

/// The device's copy of a posted send request.
pub(crate) struct Posted {
    wr_id: u64,
    is_signalled: bool,
    /// Number of requests posted before it.
    ordinal: u64,
    /// Destination node of a datagram; `None` if there is no such node.
    dst: Option<Node>,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
}

/// A queue pair.
struct Qp {
    transport: Transport,
    device: DeviceSide,
}

/// The device's state of a queue pair in addition to its transport.
struct DeviceSide {
    id: u32,
    context: u32,
    node: Node,
    pd: u32,
    num: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    signals_all: bool,
    rules: SendRules,
    receives: ReceiveQueue,
    /// The peer's node; `None` if there is no such node.
    peer: Option<Node>,
    /// The sender of the last packet.
    arriving_from: Node,
    progress: Progress,
}

/// Progress of a queue pair's device.
#[derive(Default)]
struct Progress {
    /// Number of send requests posted, and of those known to have completed because a completion was polled.
    posted: u64,
    reaped: u64,
    /// Incarnation of the queue pair: changes when everything in progress becomes void, on error and reset.
    incarnation: u64,
    /// For each timer, a number that changes whenever the timer is set or stopped.
    timer_generations: [u64; Timer::ALL.len()],
    /// Whether the next packet of a request is scheduled.
    is_sending: bool,
    /// Whether the next data packet of a READ is scheduled.
    is_responding: bool,
    /// Time at which all payload accepted so far is placed.
    placed_ns: u64,
    /// Earliest time of placement for the incoming message.
    from_ns: u64,
}

/// The queue pairs of a node by number.
struct Numbers {
    qps: BTreeMap<u32, u32>,
    next: u32,
}

impl Numbers {
    /// Returns an unused number. Numbers are reused only after all others were used.
    fn unused(&mut self) -> u32 {
        loop {
            let num = self.next;
            self.next = if num >= 0x00ff_fffe { 2 } else { num + 1 };
            if !self.qps.contains_key(&num) {
                return num;
            }
        }
    }
}

/// Objects that a queue pair uses.
pub(crate) struct QpResources {
    pub(crate) context: u32,
    /// Node and protection domain.
    pub(crate) domain: (Node, u32),
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
}

/// The queue pairs of all nodes.
#[derive(Default)]
pub(crate) struct Qps {
    qps: Arena<Qp>,
    nodes: Vec<Numbers>,
}

impl Qps {
    pub(crate) fn add_node(&mut self, first_number: u32) {
        self.nodes.push(Numbers { qps: BTreeMap::new(), next: first_number });
    }

    /// Returns the number of queue pairs.
    pub(crate) fn len(&self) -> usize {
        self.qps.len()
    }

    /// Returns the number of queue pairs of a node.
    pub(crate) fn count(&self, node: Node) -> usize {
        self.nodes[node as usize].qps.len()
    }

    /// Creates a queue pair; returns its identifier and its queue pair number.
    pub(crate) fn create(
        &mut self,
        devices: &mut Devices,
        resources: QpResources,
        attr: &QpInitAttr<'_>,
        cap: &QpCap,
    ) -> (u32, u32) {
        let QpResources { context, domain: (node, pd), send_cq, recv_cq, srq } = resources;
        let id = self.qps.next_id();
        let num = self.nodes[node as usize].unused();
        let params = &devices.params;
        let transport = Transport::new(QpConfig {
            qpn: num,
            transport: attr.qp_type,
            has_srq: srq.is_some(),
            port_mtu: params.mtu,
            message_bytes_max: params.limits.message_bytes,
            unacknowledged_min: params.unacknowledged_min,
            unacknowledged_max: params.unacknowledged_max,
            read_packets_max: u32::MAX,
            rate_control: params.rate_control,
        });
        let device = DeviceSide {
            id,
            context,
            node,
            pd,
            num,
            send_cq,
            recv_cq,
            srq,
            signals_all: attr.sq_sig_all,
            rules: SendRules::new(PROVIDER, attr.qp_type, cap),
            receives: ReceiveQueue::new(RecvRules::of_pair(cap, srq.is_some()), cap.max_recv_wr),
            peer: None,
            arriving_from: node,
            progress: Progress::default(),
        };
        self.qps.insert(Qp { transport, device });
        self.nodes[node as usize].qps.insert(num, id);
        devices.note(RecordKind::Create, [4, u64::from(id), u64::from(num), 0]);
        (id, num)
    }

    /// Destroys a queue pair and discards its completions; returns its shared receive queue.
    pub(crate) fn destroy(&mut self, devices: &mut Devices, id: u32) -> Option<u32> {
        let qp = self.qps.remove(id)?.device;
        self.nodes[qp.node as usize].qps.remove(&qp.num);
        devices.discard_completions([qp.send_cq, qp.recv_cq], id);
        devices.note(RecordKind::Destroy, [4, u64::from(id), 0, 0]);
        qp.srq
    }

    pub(crate) fn state(&self, id: u32) -> Option<QpState> {
        self.qps.get(id).map(|qp| qp.transport.state())
    }

    /// Returns the queue pair with this queue pair number on a node.
    pub(crate) fn numbered(&self, node: Node, num: u32) -> Option<u32> {
        self.nodes.get(node as usize)?.qps.get(&num).copied()
    }

    /// Returns whether a queue pair still has this incarnation.
    pub(crate) fn is_current(&self, (id, incarnation): (u32, u64)) -> bool {
        self.qps.get(id).is_some_and(|qp| qp.device.progress.incarnation == incarnation)
    }

    /// Returns the number of queue pairs that use a shared receive queue.
    pub(crate) fn users_of(&self, srq: u32) -> usize {
        self.qps.iter().filter(|(_, qp)| qp.device.srq == Some(srq)).count()
    }

    /// Releases the queue slots of a polled completion.
    pub(crate) fn polled(&mut self, id: u32, released: ReleasedSlots) {
        let Some(Qp { device, .. }) = self.qps.get_mut(id) else { return };
        match released {
            ReleasedSlots::SendsTo(ordinal) => device.progress.reap(ordinal),
            ReleasedSlots::Receive => device.receives.release(),
            ReleasedSlots::Nothing => {}
        }
    }

    /// Calls `work` with a queue pair's transport and its device.
    pub(crate) fn with<T>(
        &mut self,
        devices: &mut Devices,
        id: u32,
        work: impl FnOnce(&mut Transport, &mut Nic<'_>) -> T,
    ) -> Option<T> {
        let Qp { transport, device } = self.qps.get_mut(id)?;
        Some(work(transport, &mut Nic { devices, qp: device }))
    }

    /// Moves the queue pairs of an overrun completion queue to the error state.
    pub(crate) fn overrun(&mut self, devices: &mut Devices, cq: u32) {
        for Qp { transport, device } in self.qps.iter_mut() {
            if device.send_cq == cq || device.recv_cq == cq {
                transport.enter_error(&mut Nic { devices, qp: device });
            }
        }
    }
}

impl Progress {
    fn reap(&mut self, ordinal: u64) {
        self.reaped = self.reaped.max(ordinal + 1);
    }
}

impl Nic<'_> {
    /// Schedules the transport's next packet.
    fn pump_at(&mut self, at_ns: u64) {
        if !std::mem::replace(&mut self.qp.progress.is_sending, true) {
            self.devices.at(at_ns, Event::Pump { qp: self.qp.id });
        }
    }

    /// Schedules the next packet after a doorbell of the running program.
    fn pump_after_doorbell(&mut self) {
        let at_ns = self.devices.scheduler.time.effect_ns() + self.devices.params.doorbell_ns;
        self.pump_at(at_ns);
    }

    /// Lets the transport send its next packet.
    pub(crate) fn pump(&mut self, transport: &mut Transport) {
        self.qp.progress.is_sending = false;
        if transport.transmit(self) {
            let at_ns = self.devices.now_ns() + self.devices.params.packet_gap_ns;
            self.pump_at(at_ns);
        }
    }

    /// Lets the transport send its responses, and the packets that they permit.
    fn progress_responses(&mut self, transport: &mut Transport) {
        let now_ns = self.devices.now_ns();
        self.pump_at(now_ns);
        while !self.qp.progress.is_responding {
            match transport.respond(self) {
                Responded::Nothing => break,
                Responded::Done => {}
                Responded::ReadContinues => {
                    self.qp.progress.is_responding = true;
                    let at_ns = now_ns + self.devices.params.packet_gap_ns;
                    self.devices.at(
                        at_ns,
                        Event::Respond { qp: self.qp.id, incarnation: self.qp.progress.incarnation },
                    );
                }
            }
        }
    }

    /// Sends the next data packet of a READ.
    pub(crate) fn respond(&mut self, transport: &mut Transport, incarnation: u64) {
        if self.qp.progress.incarnation == incarnation {
            self.qp.progress.is_responding = false;
            self.progress_responses(transport);
        }
    }

    /// Ends an access of the transport.
    pub(crate) fn accessed(&mut self, transport: &mut Transport, token: Token) {
        transport.accessed(token, Ok(0));
        self.progress_responses(transport);
    }

    /// Handles the expiry of a timer, unless the timer was restarted or stopped.
    pub(crate) fn timer_ends(&mut self, transport: &mut Transport, timer: Timer, generation: u64) {
        if self.qp.progress.timer_generations[timer as usize] == generation {
            transport.timed_out(self, timer);
            self.progress_responses(transport);
        }
    }

    /// Handles a packet for this queue pair.
    pub(crate) fn arrived(&mut self, transport: &mut Transport, frame: &Frame) {
        let packet = &frame.packet;
        let is_of_peer = self.qp.peer == Some(frame.src) && transport.dest_qpn() == frame.src_qpn;
        let kind = transport.config().transport;
        if kind != QpType::Ud && !is_of_peer {
            let psn = u64::from(packet.psn.number());
            self.devices.note(RecordKind::Ignore, [u64::from(self.qp.node), u64::from(self.qp.num), psn, 0]);
            return;
        }
        self.qp.arriving_from = frame.src;
        transport.arrived(self, packet, &frame.payload);
        if frame.is_marked {
            transport.marked(self, packet);
        }
        self.progress_responses(transport);
    }

    pub(crate) fn modify(&mut self, transport: &mut Transport, attr: &QpAttr) -> Result<()> {
        const OP: &str = "modify_qp";
        let kind = transport.config().transport;
        let to = attr.check_transition(kind, self.qp.num, transport.state())?;
        if let Some(port) = attr.port_num.filter(|port| *port != 1) {
            return Err(Error::invalid(OP, format!("port {port}: this device has port 1 only")));
        }
        let limit = self.devices.params.limits.rd_atomic;
        let depths = [("max_dest_rd_atomic", attr.max_dest_rd_atomic), ("max_rd_atomic", attr.max_rd_atomic)];
        for (name, depth) in depths {
            if let Some(depth) = depth.filter(|depth| *depth > limit) {
                return Err(Error::invalid(OP, format!("{name} {depth}: up to {limit}")));
            }
        }
        if let Some(path) = attr.ah {
            self.qp.peer = self.devices.nodes.of(path.dgid);
        }
        transport.modify(self, attr);
        if to == QpState::Rts {
            self.pump_after_doorbell();
        }
        Ok(())
    }
}
