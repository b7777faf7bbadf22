//! Cost of one call in the steady state: system calls and heap operations at both ends.

use super::figures::{Figure, connect, load_plan};
use super::{ExperimentError, FrontEnd, KvMainPlan, ServerUnderTest};
use crate::experiments::own_syscalls::count_own_thread;
use crate::experiments::server::ServerProcess;
use crate::load::{Load, LoadPlan};
use crate::measure::{Traced, count_allocations, count_syscalls, own_allocations};
use crate::report::Report;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Duration of each count, with the default duration of measurements.
const WINDOW: Duration = Duration::from_millis(250);
/// Maximum duration of the run, which ends with the last count.
const RUN_MAX: Duration = Duration::from_secs(10);
/// Time before the first count, with the default duration of measurements.
const SETTLE: Duration = Duration::from_millis(150);

/// Costs of calls through one front end, at window 1 with read-only requests; `None` if they could not be counted.
#[derive(Debug, Clone)]
pub(super) struct Costs {
    pub(super) front_end: FrontEnd,
    pub(super) server_syscalls_per_op: Option<f64>,
    pub(super) client_syscalls_per_op: Option<f64>,
    pub(super) server_allocations_per_op: Option<f64>,
    pub(super) client_allocations_per_op: Option<f64>,
}

/// Returns the duration of each count under `plan`.
pub(super) fn window(plan: &KvMainPlan) -> Duration {
    plan.env.scaled(WINDOW)
}

/// Counts while the calling thread runs a load.
pub(super) fn measure(
    plan: &KvMainPlan,
    tested: &mut ServerUnderTest,
    report: &mut Report,
) -> Result<Costs, ExperimentError> {
    let mut connections = connect(plan, &Figure::of_reads(tested.front_end, 1), tested, 0)?;
    let ServerUnderTest { front_end, server, ledger, .. } = tested;
    let load = Load::new(LoadPlan { duration: RUN_MAX, ..load_plan(plan, 1) });
    let (ops, end) = (load.completed(), load.end());
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let (result, costs) = thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let _end = EndOnDrop(&end);
            count(plan, *front_end, server, &ops, tid, report)
        });
        (load.run(&mut connections, ledger, |_| {}), counting.join())
    });
    let result = result.map_err(|error| front_end.failed(error))?;
    report.problems.extend(result.problems().into_iter().map(|problem| format!("{front_end}: {problem}")));
    costs.map_err(|_| front_end.failed("the counting thread panicked; this is a defect"))
}

/// Ends the load when the count ends, even if the count panics.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn count(
    plan: &KvMainPlan,
    front_end: FrontEnd,
    server: &ServerProcess,
    ops: &AtomicU64,
    tid: i32,
    report: &mut Report,
) -> Costs {
    let window = window(plan);
    thread::sleep(plan.env.scaled(SETTLE));
    // Heap operations are counted first, because tracing itself allocates in this process.
    count_allocations();
    let now = || [ops.load(Ordering::Relaxed), server.allocations().unwrap_or(0), own_allocations()];
    let start = now();
    thread::sleep(window);
    let end = now();
    let per_op = |count: u64, ops: u64| (ops > 0).then(|| count as f64 / ops as f64);
    let [done, at_server, at_client] = std::array::from_fn(|at| end[at] - start[at]);

    // Operations completed at the beginning and at the end of each window.
    let mut marks = Vec::new();
    let server_syscalls = server.pid().and_then(|pid| {
        let counted =
            count_syscalls(Traced::Process(pid), window, || marks.push(ops.load(Ordering::Relaxed)));
        or_note(counted, "server", report)
    });
    let mut own_marks = Vec::new();
    let (launcher, core) = (&plan.env.launcher, plan.env.server_core);
    let counted =
        count_own_thread(launcher, core, tid, window, || own_marks.push(ops.load(Ordering::Relaxed)));
    let client_syscalls = or_note(counted, "client", report);
    let between = |marks: &[u64]| if let [start, end] = marks { end - start } else { 0 };
    Costs {
        front_end,
        server_syscalls_per_op: server_syscalls.and_then(|count| per_op(count, between(&marks))),
        client_syscalls_per_op: client_syscalls.and_then(|count| per_op(count, between(&own_marks))),
        server_allocations_per_op: server.allocations().and_then(|_| per_op(at_server, done)),
        client_allocations_per_op: per_op(at_client, done),
    }
}

fn or_note(counted: Result<u64, impl Display>, end: &str, report: &mut Report) -> Option<u64> {
    counted.map_err(|error| report.note(format!("system calls of the {end} are not counted: {error}"))).ok()
}
