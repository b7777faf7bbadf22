//! Queue pairs: the transport of [`farcall_wire`], and the simulated device's state of them.
//!
//! A program has a `SimQp`. [`post`] checks and queues its requests, and [`nic`] is the transport's interface to the
//! device. This file handles the events of a queue pair.

mod nic;
mod post;

use farcall_verbs::{Error, QpAttr, QpState, QpType, Result, SendRules};
use farcall_wire::{Responded, Timer, Token};

use crate::cq::ReleasedSlots;
use crate::packet::{Frame, Node};
use crate::queue::Event;
use crate::receive::{Receive, ReceiveQueue};
use crate::state::State;
use crate::trace::RecordKind;
pub(crate) use nic::Nic;
use post::Posted;

/// The provider's name.
pub(crate) const PROVIDER: &str = "sim";

/// The transport of a queue pair.
pub(crate) type Transport = farcall_wire::Qp<Posted, Receive>;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) transport: Transport,
    pub(crate) device: DeviceSide,
}

/// The device's state of a queue pair in addition to its transport.
pub(crate) struct DeviceSide {
    pub(crate) id: u32,
    pub(crate) context: u32,
    pub(crate) node: Node,
    pub(crate) pd: u32,
    pub(crate) num: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) signals_all: bool,
    pub(crate) rules: SendRules,
    pub(crate) receives: ReceiveQueue,
    /// The peer's node; `None` if there is no such node.
    pub(crate) peer: Option<Node>,
    pub(crate) progress: Progress,
}

/// Progress of a queue pair's device.
#[derive(Default)]
pub(crate) struct Progress {
    /// Number of send requests posted, and of those known to have completed because a completion was polled.
    posted: u64,
    reaped: u64,
    /// Incarnation of the queue pair: changes when everything in progress becomes void, on error and reset.
    pub(crate) incarnation: u64,
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

impl Qp {
    /// Releases the queue slots of a polled completion.
    pub(crate) fn polled(&mut self, released: ReleasedSlots) {
        match released {
            ReleasedSlots::SendsTo(ordinal) => self.device.progress.reap(ordinal),
            ReleasedSlots::Receive => self.device.receives.release(),
            ReleasedSlots::Nothing => {}
        }
    }
}

impl Progress {
    fn reap(&mut self, ordinal: u64) {
        self.reaped = self.reaped.max(ordinal + 1);
    }
}

impl State {
    /// Calls `work` with a queue pair's transport and its device.
    pub(crate) fn with_qp<T>(
        &mut self,
        id: u32,
        work: impl FnOnce(&mut Transport, &mut Nic<'_>) -> T,
    ) -> Option<T> {
        let mut qp = self.qps.remove(id)?;
        let result = work(&mut qp.transport, &mut Nic { state: self, qp: &mut qp.device });
        self.qps.reinsert(id, qp);
        Some(result)
    }
}

impl Nic<'_> {
    /// Schedules the transport's next packet.
    fn pump_at(&mut self, at_ns: u64) {
        if !std::mem::replace(&mut self.qp.progress.is_sending, true) {
            self.state.at(at_ns, Event::Pump { qp: self.qp.id });
        }
    }

    /// Schedules the next packet after a doorbell of the running program.
    fn pump_after_doorbell(&mut self) {
        let at_ns = self.state.effect_ns() + self.state.params.doorbell_ns;
        self.pump_at(at_ns);
    }

    /// Lets the transport send its next packet.
    pub(crate) fn pump(&mut self, transport: &mut Transport) {
        self.qp.progress.is_sending = false;
        if transport.transmit(self) {
            let at_ns = self.state.now_ns + self.state.params.packet_gap_ns;
            self.pump_at(at_ns);
        }
    }

    /// Lets the transport send its responses, and the packets that they permit.
    fn progress_responses(&mut self, transport: &mut Transport) {
        let now_ns = self.state.now_ns;
        self.pump_at(now_ns);
        while !self.qp.progress.is_responding {
            match transport.respond(self) {
                Responded::Nothing => break,
                Responded::Done => {}
                Responded::ReadContinues => {
                    self.qp.progress.is_responding = true;
                    let at_ns = now_ns + self.state.params.packet_gap_ns;
                    self.state.at(
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
            self.state.note(RecordKind::Ignore, [u64::from(self.qp.node), u64::from(self.qp.num), psn, 0]);
            return;
        }
        self.state.arriving_from = frame.src;
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
        let limit = self.state.params.limits.rd_atomic;
        let depths = [("max_dest_rd_atomic", attr.max_dest_rd_atomic), ("max_rd_atomic", attr.max_rd_atomic)];
        for (name, depth) in depths {
            if let Some(depth) = depth.filter(|depth| *depth > limit) {
                return Err(Error::invalid(OP, format!("{name} {depth}: up to {limit}")));
            }
        }
        if let Some(path) = attr.ah {
            self.qp.peer = self.state.node_of(path.dgid);
        }
        transport.modify(self, attr);
        if to == QpState::Rts {
            self.pump_after_doorbell();
        }
        Ok(())
    }
}
