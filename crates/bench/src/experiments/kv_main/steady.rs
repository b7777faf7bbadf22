//! What one call costs in the steady state: system calls and heap operations, at both ends.

use super::figures::{connect, load_plan};
use super::{Door, KvMainError, KvMainPlan, Post};
use crate::experiments::own_syscalls::count_own_thread;
use crate::load::{Load, LoadPlan};
use crate::measure::{AllocationCounts, SyscallCount, Traced, count_syscalls};
use crate::report::Report;
use crate::workload::{Distribution, Workload};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Of each count.
const WINDOW: Duration = Duration::from_millis(250);
/// Of the whole run, longer than all counts together.
const RUN: Duration = Duration::from_millis(1600);
/// Before the first count.
const SETTLE: Duration = Duration::from_millis(150);

/// Costs of calls through one door, at window 1 with read-only requests. `None`: could not be counted here.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    pub(super) door: Door,
    pub(super) server_syscalls_per_op: Option<f64>,
    pub(super) client_syscalls_per_op: Option<f64>,
    pub(super) server_allocations_per_op: Option<f64>,
    pub(super) client_allocations_per_op: Option<f64>,
}

/// Counts while the calling thread runs a load.
pub(super) fn measure(plan: &KvMainPlan, post: &mut Post, report: &mut Report) -> Result<Costs, KvMainError> {
    let mut connections = connect(plan, Workload::C, Distribution::Zipfian, post, 1, 0)?;
    let load = Load::new(LoadPlan { duration: RUN, ..load_plan(plan, 1) });
    let load = load.map_err(|source| KvMainError::Load { door: post.door, source })?;
    let ops = load.completed();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let (door, server, ledger) = (post.door, &post.server, &mut post.ledger);
    let (result, mut costs, notes) = thread::scope(|scope| {
        let counting = scope.spawn(|| count(plan, door, server, &ops, tid));
        let result = load.run(&mut connections, ledger, |_| {});
        let (costs, notes) = counting.join().unwrap_or_else(|_| (Costs::none(door), Vec::new()));
        (result, costs, notes)
    });
    let result = result.map_err(|source| KvMainError::Load { door, source })?;
    report.problems.extend(result.problems().into_iter().map(|problem| format!("{door}: {problem}")));
    report.notes.extend(notes);
    if result.ops == 0 {
        costs = Costs::none(door);
    }
    Ok(costs)
}

impl Costs {
    fn none(door: Door) -> Self {
        Self {
            door,
            server_syscalls_per_op: None,
            client_syscalls_per_op: None,
            server_allocations_per_op: None,
            client_allocations_per_op: None,
        }
    }
}

fn count(
    plan: &KvMainPlan,
    door: Door,
    server: &crate::experiments::server::ServerProcess,
    ops: &AtomicU64,
    tid: i32,
) -> (Costs, Vec<String>) {
    let mut costs = Costs::none(door);
    let mut notes = Vec::new();
    thread::sleep(SETTLE);
    // Heap operations first: tracing makes some of its own in this process.
    let start = (ops.load(Ordering::Relaxed), server.allocations(), AllocationCounts::of_this_process());
    thread::sleep(WINDOW);
    let end = (ops.load(Ordering::Relaxed), server.allocations(), AllocationCounts::of_this_process());
    let done = end.0 - start.0;
    let per_op = |count: u64| (done > 0).then(|| count as f64 / done as f64);
    costs.server_allocations_per_op = per_op(end.1.since(start.1).allocations);
    costs.client_allocations_per_op = per_op(end.2.since(start.2).allocations);

    let traced = OpsBetween::default();
    let counted =
        count_syscalls(Traced::Process(server.pid()), WINDOW, || traced.start(ops), || traced.end(ops));
    match counted {
        Ok(count) => costs.server_syscalls_per_op = traced.per_op(&count),
        Err(error) => notes.push(format!("system calls of the server are not counted: {error}")),
    }
    let traced = OpsBetween::default();
    let counted = count_own_thread(
        &plan.stage.launcher,
        plan.stage.server_core,
        tid,
        WINDOW,
        || traced.start(ops),
        || traced.end(ops),
    );
    match counted {
        Ok(count) => costs.client_syscalls_per_op = traced.per_op(&count),
        Err(error) => notes.push(format!("system calls of the client are not counted: {error}")),
    }
    (costs, notes)
}

/// Operations completed between two moments.
#[derive(Debug, Default)]
struct OpsBetween {
    start: AtomicU64,
    end: AtomicU64,
}

impl OpsBetween {
    fn start(&self, ops: &AtomicU64) {
        self.start.store(ops.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn end(&self, ops: &AtomicU64) {
        self.end.store(ops.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn per_op(&self, count: &SyscallCount) -> Option<f64> {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        count.per_op(end.saturating_sub(start))
    }
}
