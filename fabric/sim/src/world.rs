//! The world: nodes, their programs, the network between them, and time.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use farcall_verbs::{Endpoint, Nanos, WaitSet};

use crate::fabric::Fabric;
use crate::host::Host;
use crate::network::{Bottleneck, Faults};
use crate::packet::NodeId;
use crate::params::Params;
use crate::rng::{Purpose, Stream};
use crate::state::State;
use crate::task::{Outcome, Phase, WaitStrategy};
use crate::trace::{Record, RecordKind};

/// Configuration of a world.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Constants.
    pub params: Params,
    /// Initial faults of the network.
    pub faults: Faults,
    /// Number of trace records that are stored.
    pub keep_records: usize,
}

impl Config {
    /// Returns the configuration of a world without faults.
    pub fn new(seed: u64) -> Self {
        Self { seed, params: Params::default(), faults: Faults::NONE, keep_records: 256 }
    }
}

/// An endpoint that runs in a world.
trait Program: Endpoint {
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<E: Endpoint + 'static> Program for E {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// A running endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u32);

impl TaskId {
    /// A number that belongs to no endpoint.
    pub const NONE: Self = Self(u32::MAX);
}

/// The world. Its state changes only in [`World::step`] and the methods based on it.
pub struct World {
    fabric: Arc<Fabric>,
    programs: Vec<Option<Box<dyn Program>>>,
    set: WaitSet,
    seed: u64,
}

farcall_verbs::opaque_debug!(World);

impl World {
    /// Creates an empty world at time zero.
    pub fn new(config: Config) -> Self {
        let Config { seed, params, faults, keep_records } = config;
        let state = State::new(seed, params, faults, keep_records);
        Self { fabric: Arc::new(Fabric::new(state)), programs: Vec::new(), set: WaitSet::default(), seed }
    }

    /// Adds a node.
    pub fn add_node(&mut self) -> Host {
        let node = self.fabric.lock().add_node();
        Host { fabric: self.fabric.clone(), node }
    }

    /// Returns a stream of random numbers for a simulated program.
    pub fn random(&self, program: u32) -> Stream {
        Stream::new(self.seed, Purpose::Program(program))
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        Nanos(self.fabric.lock().devices.now_ns())
    }

    /// Starts an endpoint on a node.
    pub fn spawn<E: Endpoint + 'static>(
        &mut self,
        host: &Host,
        waiting: WaitStrategy,
        endpoint: E,
    ) -> TaskId {
        let id = self.fabric.lock().devices.scheduler.add_task(host.node, waiting);
        self.programs.resize_with(id as usize + 1, || None);
        self.programs[id as usize] = Some(Box::new(endpoint));
        TaskId(id)
    }

    /// Returns a running endpoint for inspection or to give it work; its next step runs as soon as possible.
    pub fn endpoint<E: Endpoint + 'static>(&mut self, task: TaskId) -> Option<&mut E> {
        self.fabric.lock().devices.scheduler.wake(task.0);
        self.programs.get_mut(task.0 as usize)?.as_mut()?.as_any_mut().downcast_mut()
    }

    /// Returns a running endpoint for inspection only.
    pub fn inspect<E: Endpoint + 'static>(&self, task: TaskId) -> Option<&E> {
        self.programs.get(task.0 as usize)?.as_ref()?.as_any().downcast_ref()
    }

    /// Terminates an endpoint between two of its steps, like a kill of its process: its objects are destroyed, and the
    /// kernel closes its pipes.
    pub fn kill(&mut self, task: TaskId) {
        {
            let devices = &mut self.fabric.lock().devices;
            devices.note(RecordKind::Kill, [u64::from(task.0), 0, 0, 0]);
            devices.scheduler.remove_task(task.0);
        }
        // Outside of the lock, because destructors of the program's objects acquire it.
        drop(self.programs.get_mut(task.0 as usize).and_then(Option::take));
    }

    /// Crashes a node: its endpoints no longer exist, and no peer is notified.
    pub fn crash(&mut self, node: NodeId) {
        let tasks = {
            let devices = &mut self.fabric.lock().devices;
            devices.note(RecordKind::Kill, [u64::from(node.0), 1, 0, 0]);
            devices.nodes.set_alive(node.0, false);
            devices.scheduler.tasks_of(node.0).to_vec()
        };
        for task in tasks {
            self.fabric.lock().devices.scheduler.remove_task(task);
            self.programs[task as usize] = None;
        }
    }

    /// Restarts a crashed node, with nothing running on it.
    pub fn restart(&mut self, node: NodeId) {
        self.fabric.lock().devices.nodes.set_alive(node.0, true);
    }

    /// Returns the present faults of the network.
    pub fn faults(&self) -> Faults {
        self.fabric.lock().devices.network.faults()
    }

    /// Changes the faults of the network.
    pub fn set_faults(&mut self, faults: Faults) {
        let devices = &mut self.fabric.lock().devices;
        devices.network.set_faults(faults);
        devices.note(RecordKind::Fault, [u64::from(faults.loss_ppm), u64::from(faults.reorder_ppm), 0, 0]);
    }

    /// Inserts a bottleneck before a node.
    pub fn add_bottleneck(&mut self, to: NodeId, bottleneck: Bottleneck) {
        self.fabric.lock().devices.network.add_bottleneck(to.0, bottleneck);
    }

    /// Drops all packets from one node to another from now on.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        let devices = &mut self.fabric.lock().devices;
        devices.network.set_cut(from.0, to.0, true);
        devices.note(RecordKind::Fault, [u64::from(from.0), u64::from(to.0), 1, 0]);
    }

    /// Drops all packets between two nodes, in both directions.
    pub fn partition(&mut self, a: NodeId, b: NodeId) {
        self.cut(a, b);
        self.cut(b, a);
    }

    /// Ends all partitions.
    pub fn heal(&mut self) {
        let devices = &mut self.fabric.lock().devices;
        devices.network.heal();
        devices.note(RecordKind::Fault, [0, 0, 2, 0]);
    }

    /// Handles the next event. Returns false if there is none, in which case nothing will happen without a call.
    pub fn step(&mut self) -> bool {
        let happened = self.fabric.lock().handle_next_event();
        match happened {
            None => return false,
            Some(None) => {}
            Some(Some(task)) => self.run_task(task),
        }
        true
    }

    /// Returns the time of the next event, if there is one.
    pub fn next_event_at(&self) -> Option<Nanos> {
        self.fabric.lock().devices.scheduler.time.next_at_ns().map(Nanos)
    }

    /// Handles all events up to a time.
    pub fn run_until(&mut self, until: Nanos) {
        loop {
            let next_ns = self.fabric.lock().devices.scheduler.time.next_at_ns();
            if next_ns.is_none_or(|at_ns| at_ns > until.0) {
                break;
            }
            self.step();
        }
        self.fabric.lock().devices.scheduler.time.advance_to(until.0);
    }

    /// Handles all events of the next `duration`.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now() + duration;
        self.run_until(until);
    }

    /// Handles events until `is_done` returns true, for at most `limit`. Returns whether it did.
    pub fn run_while_not(&mut self, limit: Duration, mut is_done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now() + limit;
        loop {
            if is_done(self) {
                return true;
            }
            if self.now() > until || !self.step() {
                return false;
            }
        }
    }

    fn run_task(&mut self, task: u32) {
        let (now, phase) = {
            let devices = &self.fabric.lock().devices;
            (Nanos(devices.now_ns()), devices.scheduler.phase(task))
        };
        let Some(program) = self.programs.get_mut(task as usize).and_then(Option::as_mut) else { return };
        let outcome = match phase {
            Some(Phase::Arm) => Outcome::Armed(program.arm().is_ok()),
            _ => Outcome::Progressed(program.progress(now)),
        };
        self.set.clear();
        program.wait_set(&mut self.set);
        self.fabric.lock().end_step(task, outcome, self.set.fds());
    }

    /// Returns whether a descriptor of this world is ready.
    pub fn is_readable(&self, fd: RawFd) -> bool {
        self.fabric.lock().is_readable(fd)
    }

    /// Returns the hash of all trace records: the same for two runs of one seed.
    pub fn trace_hash(&self) -> u64 {
        self.fabric.lock().devices.scheduler.time.trace().hash()
    }

    /// Returns the number of trace records.
    pub fn trace_records(&self) -> u64 {
        self.fabric.lock().devices.scheduler.time.trace().count()
    }

    /// Returns the last trace records.
    pub fn last_records(&self) -> Vec<Record> {
        self.fabric.lock().devices.scheduler.time.trace().last().copied().collect()
    }

    /// Returns the numbers of existing queue pairs, completion queues, regions and pipe ends, for leak checks.
    pub fn objects(&self) -> [usize; 4] {
        let state = self.fabric.lock();
        [state.qps.len(), state.devices.cqs.len(), state.devices.memory.len(), state.pipes.len()]
    }
}
