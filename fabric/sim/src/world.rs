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
use crate::task::{Outcome, Phase, Waiting};
use crate::trace::{Record, What};

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Everything random follows from it.
    pub seed: u64,
    /// Constants.
    pub params: Params,
    /// What goes wrong in the network at first.
    pub faults: Faults,
    /// How many of the last records of the trace are kept.
    pub keep_records: usize,
}

impl Config {
    /// A world without faults.
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
    /// No endpoint: what is killed in its name does not exist.
    pub const NONE: Self = Self(u32::MAX);
}

/// The world. Nothing happens in it but in [`World::step`] and its relatives.
pub struct World {
    fabric: Arc<Fabric>,
    programs: Vec<Option<Box<dyn Program>>>,
    set: WaitSet,
    seed: u64,
}

impl World {
    /// An empty world at time zero.
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

    /// A stream of random numbers for a simulated program.
    pub fn random(&self, program: u32) -> Stream {
        Stream::new(self.seed, Purpose::Program(program))
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        Nanos(self.fabric.lock().now_ns)
    }

    /// Runs an endpoint on a node from now on.
    pub fn spawn<E: Endpoint + 'static>(&mut self, host: &Host, waiting: Waiting, endpoint: E) -> TaskId {
        let id = self.fabric.lock().add_task(host.node, waiting);
        self.programs.resize_with(id as usize + 1, || None);
        self.programs[id as usize] = Some(Box::new(endpoint));
        TaskId(id)
    }

    /// A running endpoint, to look at or to give something to do; it has its next turn as soon as it can.
    pub fn endpoint<E: Endpoint + 'static>(&mut self, task: TaskId) -> Option<&mut E> {
        self.fabric.lock().wake(task.0);
        self.programs.get_mut(task.0 as usize)?.as_mut()?.as_any_mut().downcast_mut()
    }

    /// A running endpoint, only to look at.
    pub fn look<E: Endpoint + 'static>(&self, task: TaskId) -> Option<&E> {
        self.programs.get(task.0 as usize)?.as_ref()?.as_any().downcast_ref()
    }

    /// Ends an endpoint between two of its steps, as a kill does: its objects are gone, its pipes are closed by its
    /// kernel.
    pub fn kill(&mut self, task: TaskId) {
        {
            let mut state = self.fabric.lock();
            state.note(What::Kill, [u64::from(task.0), 0, 0, 0]);
            state.remove_task(task.0);
        }
        // Outside of the lock: what the program owns locks when it is dropped.
        drop(self.programs.get_mut(task.0 as usize).and_then(Option::take));
    }

    /// A node loses its power: its endpoints are gone, and nobody is told.
    pub fn crash(&mut self, node: NodeId) {
        let tasks = {
            let mut state = self.fabric.lock();
            state.note(What::Kill, [u64::from(node.0), 1, 0, 0]);
            state.nodes[node.0 as usize].is_alive = false;
            state.nodes[node.0 as usize].tasks.clone()
        };
        for task in tasks {
            self.fabric.lock().remove_task(task);
            self.programs[task as usize] = None;
        }
    }

    /// A node that crashed is back, with nothing running.
    pub fn revive(&mut self, node: NodeId) {
        self.fabric.lock().nodes[node.0 as usize].is_alive = true;
    }

    /// What goes wrong in the network now.
    pub fn faults(&self) -> Faults {
        self.fabric.lock().network.faults
    }

    /// Changes what goes wrong in the network.
    pub fn set_faults(&mut self, faults: Faults) {
        let mut state = self.fabric.lock();
        state.network.faults = faults;
        state.note(What::Fault, [u64::from(faults.loss_ppm), u64::from(faults.reorder_ppm), 0, 0]);
    }

    /// What is sent to a node passes a bottleneck from now on.
    pub fn narrow(&mut self, to: NodeId, bottleneck: Bottleneck) {
        self.fabric.lock().network.narrow(to.0, bottleneck);
    }

    /// Nothing passes any more from one node to another.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        let mut state = self.fabric.lock();
        state.network.set_cut(from.0, to.0, true);
        state.note(What::Fault, [u64::from(from.0), u64::from(to.0), 1, 0]);
    }

    /// Nothing passes between two nodes, in either direction.
    pub fn part(&mut self, a: NodeId, b: NodeId) {
        self.cut(a, b);
        self.cut(b, a);
    }

    /// All ways are open again.
    pub fn heal(&mut self) {
        let mut state = self.fabric.lock();
        state.network.heal();
        state.note(What::Fault, [0, 0, 2, 0]);
    }

    /// Lets the next event happen. False if there is none: nothing will ever happen by itself.
    pub fn step(&mut self) -> bool {
        let happened = self.fabric.lock().happen();
        match happened {
            None => return false,
            Some(None) => {}
            Some(Some(task)) => self.turn(task),
        }
        true
    }

    /// When the next event is, if there is one.
    pub fn next_event_at(&self) -> Option<Nanos> {
        self.fabric.lock().next_at_ns().map(Nanos)
    }

    /// Lets everything happen up to a time.
    pub fn run_until(&mut self, until: Nanos) {
        loop {
            let next_ns = self.fabric.lock().next_at_ns();
            if next_ns.is_none_or(|at_ns| at_ns > until.0) {
                break;
            }
            self.step();
        }
        let mut state = self.fabric.lock();
        state.now_ns = state.now_ns.max(until.0);
    }

    /// Lets so much time pass.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now() + duration;
        self.run_until(until);
    }

    /// Lets events happen until `is_done`, but not longer than `limit`. Returns whether it is done.
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

    fn turn(&mut self, task: u32) {
        let (now, phase) = {
            let state = self.fabric.lock();
            (Nanos(state.now_ns), state.tasks.get(task).map(|task| task.phase))
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

    /// Whether a descriptor of this world is ready.
    pub fn is_readable(&self, fd: RawFd) -> bool {
        self.fabric.lock().is_readable(fd)
    }

    /// The hash of everything that has happened: the same for two runs of one seed.
    pub fn trace_hash(&self) -> u64 {
        self.fabric.lock().trace.hash()
    }

    /// How many records the trace has.
    pub fn trace_records(&self) -> u64 {
        self.fabric.lock().trace.count()
    }

    /// The last records of the trace.
    pub fn last_records(&self) -> Vec<Record> {
        self.fabric.lock().trace.last().copied().collect()
    }

    /// What is left: queue pairs, completion queues, regions, pipe ends. For leak checks.
    pub fn objects(&self) -> [usize; 4] {
        let state = self.fabric.lock();
        [state.qps.len(), state.cqs.len(), state.mrs.len(), state.ends.len()]
    }
}
