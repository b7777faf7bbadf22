//! The state of the world: its devices, queue pairs and pipes, and the effect of each event.

use std::os::fd::RawFd;

use crate::arena::Arena;
use crate::channel::{Channel, Descriptor, OpenDevice};
use crate::devices::Devices;
use crate::network::Faults;
use crate::packet::{Frame, Node};
use crate::params::Params;
use crate::pipe::Pipes;
use crate::qp::Qps;
use crate::queue::Event;
use crate::rng::{Purpose, Stream};
use crate::task::Outcome;
use crate::trace::RecordKind;

pub(crate) struct State {
    pub(crate) devices: Devices,
    pub(crate) qps: Qps,
    pub(crate) pipes: Pipes,
}

impl State {
    pub(crate) fn new(seed: u64, params: Params, faults: Faults, keep_records: usize) -> Self {
        Self {
            devices: Devices::new(seed, params, faults, keep_records),
            qps: Qps::default(),
            pipes: Pipes::new(Stream::new(seed, Purpose::Pipes)),
        }
    }

    pub(crate) fn add_node(&mut self) -> Node {
        let (first_qpn, first_key) = self.devices.scheduler.add_node();
        self.devices.memory.add_node(first_key);
        self.qps.add_node(first_qpn);
        self.devices.nodes.add()
    }

    /// Advances the time to the next event and handles it. Returns the endpoint to run if the event was a step; `None`
    /// if there is no event.
    pub(crate) fn handle_next_event(&mut self) -> Option<Option<u32>> {
        let event = self.devices.scheduler.time.next_event()?;
        let Self { devices, qps, pipes } = self;
        match event {
            Event::Arrive(packet) => self.arrive(*packet),
            Event::Pump { qp } => {
                qps.with(devices, qp, |transport, nic| nic.pump(transport)).unwrap_or_default()
            }
            Event::Timer { qp, timer, generation } => qps
                .with(devices, qp, |transport, nic| nic.timer_ends(transport, timer, generation))
                .unwrap_or_default(),
            Event::Accessed { qp, token } => {
                qps.with(devices, qp, |transport, nic| nic.accessed(transport, token)).unwrap_or_default();
            }
            Event::Respond { qp, incarnation } => {
                qps.with(devices, qp, |transport, nic| nic.respond(transport, incarnation))
                    .unwrap_or_default();
            }
            Event::Place { chunk } => self.place_chunk(chunk),
            Event::Overrun { cq } => qps.overrun(devices, cq),
            Event::Pipe { end } => pipes.deliver_due(devices, end),
            Event::Dial { end, attempt } => pipes.dial_event(devices, end, attempt),
            Event::Step { task, incarnation } => {
                return Some(devices.scheduler.begin_step(task, incarnation));
            }
        }
        Some(None)
    }

    fn arrive(&mut self, frame: Frame) {
        let Self { devices, qps, .. } = self;
        let note = [
            frame.direction(),
            u64::from(frame.packet.dest_qpn),
            u64::from(frame.packet.psn.number()),
            u64::from(frame.packet.opcode()),
        ];
        let is_alive = devices.nodes.is_alive(frame.dst);
        let Some(qp) = qps.numbered(frame.dst, frame.packet.dest_qpn).filter(|_| is_alive) else {
            devices.note(RecordKind::Ignore, note);
            return;
        };
        devices.note(RecordKind::Arrive, note);
        qps.with(devices, qp, |transport, nic| nic.arrived(transport, &frame));
    }

    /// Places a chunk, unless its queue pair left its state.
    fn place_chunk(&mut self, number: u64) {
        let Devices { placement, memory, scheduler, .. } = &mut self.devices;
        if let Some(chunk) = placement.take(number).filter(|chunk| self.qps.is_current(chunk.placed_by())) {
            chunk.store(memory, scheduler);
        }
    }

    /// Deregisters a region after the placement of the chunks in flight: deregistration waits for accesses in progress.
    pub(crate) fn deregister(&mut self, mr: u32) {
        for chunk in self.devices.placement.chunks_in(mr) {
            self.place_chunk(chunk);
        }
        let Devices { memory, scheduler, .. } = &mut self.devices;
        memory.deregister(&mut scheduler.time, mr);
    }

    /// Destroys a queue pair.
    pub(crate) fn destroy_qp(&mut self, id: u32) {
        if let Some(srq) = self.qps.destroy(&mut self.devices, id) {
            self.release_srq(srq);
        }
    }

    /// Removes a shared receive queue that has neither owner nor users.
    pub(crate) fn release_srq(&mut self, id: u32) {
        let is_owned = self.devices.srqs.get(id).is_none_or(|srq| srq.is_owned());
        if !is_owned && self.qps.users_of(id) == 0 {
            self.devices.srqs.remove(id);
            self.devices.note(RecordKind::Destroy, [2, u64::from(id), 0, 0]);
        }
    }

    /// Schedules the next step of an endpoint according to the result of this one.
    pub(crate) fn end_step(&mut self, task: u32, outcome: Outcome, fds: &[RawFd]) {
        let Self { devices: Devices { scheduler, channels, contexts, .. }, pipes, .. } = self;
        scheduler.end_step(task, outcome, fds, |fd| is_readable(channels, contexts, pipes, fd));
    }

    /// Returns whether a descriptor is ready.
    pub(crate) fn is_readable(&self, fd: RawFd) -> bool {
        is_readable(&self.devices.channels, &self.devices.contexts, &self.pipes, fd)
    }
}

fn is_readable(channels: &Arena<Channel>, contexts: &Arena<OpenDevice>, pipes: &Pipes, fd: RawFd) -> bool {
    match Descriptor::of(fd) {
        Some(Descriptor::Channel(id)) => channels.get(id).is_some_and(|channel| !channel.is_empty()),
        Some(Descriptor::Pipe(id)) => pipes.is_readable(id),
        Some(Descriptor::Listener(id)) => pipes.has_backlog(id),
        Some(Descriptor::Events(id)) => contexts.get(id).is_some_and(|events| !events.is_empty()),
        None => false,
    }
}
