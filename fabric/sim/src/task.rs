//! Scheduling of endpoints as tasks.
//!
//! An endpoint's step is instantaneous; the CPU time of its calls is accumulated, and the next step follows after it. A
//! *polling* endpoint is called repeatedly; after a number of idle iterations, further ones are skipped until something
//! changes at its node, because they would find nothing. A *sleeping* endpoint is run by the drivers' rule: progress
//! until idle, arm, progress once more, sleep on the wait set.

use std::os::fd::RawFd;
use std::sync::Arc;

use farcall_verbs::{Nanos, Progress};

use crate::arena::Arena;
use crate::packet::Node;
use crate::params::Params;
use crate::queue::Event;
use crate::rng::Stream;
use crate::timeline::Timeline;
use crate::trace::RecordKind;

/// Wait strategy of an endpoint's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStrategy {
    /// It polls continuously.
    Poll,
    /// It sleeps until an event occurs.
    Event,
}

/// Kind of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Step,
    Arm,
    LastPoll,
    Asleep,
}

/// Scheduling state of an endpoint.
struct Task {
    node: Node,
    waiting: WaitStrategy,
    phase: Phase,
    fds: Vec<RawFd>,
    /// Changes when a scheduled step becomes invalid.
    incarnation: u64,
    busy_until_ns: u64,
    idle_polls: u32,
}

/// Result of a step.
pub(crate) enum Outcome {
    Progressed(Progress),
    Armed(bool),
}

/// The endpoints of all nodes, and the time in which they run.
pub(crate) struct Scheduler {
    pub(crate) time: Timeline,
    params: Arc<Params>,
    random: Stream,
    tasks: Arena<Task>,
    of_node: Vec<Vec<u32>>,
}

impl Scheduler {
    /// Creates a scheduler that draws the numbers of [`Purpose::World`](crate::rng::Purpose::World) from `random`.
    pub(crate) fn new(time: Timeline, params: Arc<Params>, random: Stream) -> Self {
        Self { time, params, random, tasks: Arena::default(), of_node: Vec::new() }
    }

    /// Adds a node. Returns the random numbers of its first queue pair and its first key.
    pub(crate) fn add_node(&mut self) -> (u32, u32) {
        self.of_node.push(Vec::new());
        let first_qpn = self.random.between(2, 1 << 16) as u32;
        let first_key = self.random.between(1 << 12, 1 << 28) as u32;
        (first_qpn, first_key)
    }

    pub(crate) fn tasks_of(&self, node: Node) -> &[u32] {
        &self.of_node[node as usize]
    }

    pub(crate) fn phase(&self, id: u32) -> Option<Phase> {
        self.tasks.get(id).map(|task| task.phase)
    }

    pub(crate) fn add_task(&mut self, node: Node, waiting: WaitStrategy) -> u32 {
        let id = self.tasks.insert(Task {
            node,
            waiting,
            phase: Phase::Step,
            fds: Vec::new(),
            incarnation: 0,
            busy_until_ns: 0,
            idle_polls: 0,
        });
        self.of_node[node as usize].push(id);
        let at_ns = self.time.now_ns() + self.random.between(0, 1_000);
        self.time.at(at_ns, Event::Step { task: id, incarnation: 0 });
        id
    }

    pub(crate) fn remove_task(&mut self, id: u32) {
        if let Some(task) = self.tasks.remove(id) {
            self.of_node[task.node as usize].retain(|other| *other != id);
        }
    }

    /// Begins a step, unless it has become invalid; returns its task.
    pub(crate) fn begin_step(&mut self, id: u32, incarnation: u64) -> Option<u32> {
        let task = self.tasks.get_mut(id)?;
        if task.incarnation != incarnation {
            return None;
        }
        if task.phase == Phase::Asleep {
            task.phase = Phase::Step;
        }
        let phase = task.phase as u64;
        self.time.begin_step(self.params.step_ns);
        self.time.note(RecordKind::Step, [u64::from(id), phase, 0, 0]);
        Some(id)
    }

    /// Schedules the next step according to the result of this one. `is_readable` returns whether a descriptor is
    /// ready.
    pub(crate) fn end_step(
        &mut self,
        id: u32,
        outcome: Outcome,
        fds: &[RawFd],
        is_readable: impl Fn(RawFd) -> bool,
    ) {
        let busy_until_ns = self.time.end_step();
        let (idle_polls, gap_ns) = (self.params.idle_polls, self.params.poll_gap_ns);
        let wake_ns = self.params.wake_ns;
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.busy_until_ns = busy_until_ns;
        task.fds.clear();
        task.fds.extend_from_slice(fds);
        let (next_phase, at_ns) = match (task.waiting, task.phase, outcome) {
            (_, _, Outcome::Progressed(Progress::Again)) => {
                task.idle_polls = 0;
                (Phase::Step, busy_until_ns)
            }
            (WaitStrategy::Poll, _, Outcome::Progressed(Progress::Idle { until })) => {
                if task.idle_polls >= idle_polls {
                    self.sleep(id, until, is_readable);
                    return;
                }
                task.idle_polls += 1;
                (Phase::Step, busy_until_ns + gap_ns)
            }
            (WaitStrategy::Event, Phase::LastPoll, Outcome::Progressed(Progress::Idle { until })) => {
                self.sleep(id, until, is_readable);
                return;
            }
            (WaitStrategy::Event, _, Outcome::Progressed(Progress::Idle { .. })) => {
                (Phase::Arm, busy_until_ns)
            }
            (_, _, Outcome::Armed(true)) => (Phase::LastPoll, busy_until_ns),
            // The endpoint must not sleep; it runs again after a while.
            (_, _, Outcome::Armed(false)) => (Phase::Step, busy_until_ns + wake_ns),
        };
        self.plan(id, next_phase, at_ns);
    }

    fn plan(&mut self, id: u32, phase: Phase, at_ns: u64) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.phase = phase;
        task.incarnation += 1;
        let incarnation = task.incarnation;
        self.time.at(at_ns, Event::Step { task: id, incarnation });
    }

    fn sleep(&mut self, id: u32, until: Option<Nanos>, is_readable: impl Fn(RawFd) -> bool) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.phase = Phase::Asleep;
        task.incarnation += 1;
        let (incarnation, busy_until_ns) = (task.incarnation, task.busy_until_ns);
        let is_ready = task.fds.iter().any(|fd| is_readable(*fd));
        self.time.note(RecordKind::Sleep, [u64::from(id), until.map_or(u64::MAX, |until| until.0), 0, 0]);
        if is_ready {
            self.wake(id);
        } else if let Some(until) = until {
            self.time.at(until.0.max(busy_until_ns), Event::Step { task: id, incarnation });
        }
    }

    /// Wakes a sleeping task.
    pub(crate) fn wake(&mut self, id: u32) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        if task.phase != Phase::Asleep {
            return;
        }
        task.idle_polls = 0;
        let (waiting, busy_until_ns) = (task.waiting, task.busy_until_ns);
        let delay_ns = match waiting {
            WaitStrategy::Poll => self.random.between(0, self.params.poll_gap_ns),
            WaitStrategy::Event => self.params.wake_ns,
        };
        self.time.note(RecordKind::Wake, [u64::from(id), 0, 0, 0]);
        let at_ns = (self.time.now_ns() + delay_ns).max(busy_until_ns);
        self.plan(id, Phase::Step, at_ns);
    }

    /// Wakes the polling endpoints of a node after a change of its memory or queues.
    pub(crate) fn memory_changed(&mut self, node: Node) {
        self.wake_matching(node, |task| task.waiting == WaitStrategy::Poll);
    }

    /// Wakes the endpoints that sleep on a descriptor that became ready, and the polling ones.
    pub(crate) fn ready(&mut self, node: Node, fd: RawFd) {
        self.wake_matching(node, |task| task.waiting == WaitStrategy::Poll || task.fds.contains(&fd));
    }

    fn wake_matching(&mut self, node: Node, is_meant: impl Fn(&Task) -> bool) {
        let mut at = 0;
        while let Some(id) = self.of_node[node as usize].get(at).copied() {
            at += 1;
            if self.tasks.get(id).is_some_and(|task| task.phase == Phase::Asleep && is_meant(task)) {
                self.wake(id);
            }
        }
    }
}
