//! A server that is killed under load and restarted.

use super::figures::{Figure, connect, load_plan};
use super::{
    ExperimentError, FrontEnd, FrontEndTarget, KvMainPlan, STOP_PATIENCE, ServerUnderTest, fill, open,
};
use crate::experiments::server::ServerProcess;
use crate::load::{Connection, Ledger, Load, LoadError, LoadPlan, LoadResult, Outcome, TargetError};
use crate::report::Report;
use crate::workload::{Op, OpKind};
use farcall_verbs::with_sources;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Duration of the load before the kill, with the default duration of measurements.
const BEFORE: Duration = Duration::from_millis(300);
/// Duration of the load that the kill interrupts: long enough that it cannot end before the kill.
const INTERRUPTED: Duration = Duration::from_secs(10);
/// Timeout of reconnecting.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts to connect, and between polls for the first response.
const RETRY: Duration = Duration::from_millis(1);

/// Outcome of the calls when the server was killed.
#[derive(Debug, Clone)]
pub(super) struct Crash {
    pub(super) front_end: FrontEnd,
    pub(super) window: u32,
    /// Calls completed before the kill.
    pub(super) answered: u64,
    /// Outstanding calls that failed.
    pub(super) failed: u64,
    /// Time from the kill until the client detected the failure.
    pub(super) noticed_ms: f64,
    /// Time from the kill until the new server reported that it serves.
    pub(super) restarted_ms: f64,
    /// Time until the first call was answered, measured from the report of the new server or from the detection of the
    /// failure, whichever is later.
    pub(super) reconnected_ms: f64,
    /// Number of values checked after the restart.
    pub(super) verified_after: u64,
}

/// Returns the front ends whose servers are killed: the slowest and the fastest of those measured.
pub(super) fn front_ends(plan: &KvMainPlan) -> Vec<FrontEnd> {
    let mut front_ends = Vec::new();
    front_ends.extend(plan.front_ends.first());
    front_ends.extend(plan.front_ends.last().filter(|last| plan.front_ends.first() != Some(last)));
    front_ends
}

/// Kills a server under load, restarts it at the same address, and calls it until it replies.
pub(super) fn measure(
    plan: &KvMainPlan,
    front_end: FrontEnd,
    report: &mut Report,
) -> Result<Crash, ExperimentError> {
    let window = plan.windows.iter().copied().max().unwrap_or(1);
    let tested = open(plan, front_end)?;
    let ready = tested.server.ready().clone();
    let mut connections = connect(plan, &Figure::of_reads(front_end, window), &tested, 0)?;
    let load = Load::new(LoadPlan { duration: INTERRUPTED, ..load_plan(plan, window) });
    let ops = load.completed();
    let ServerUnderTest { server, mut ledger, .. } = tested;

    // The load runs in another thread. The calling thread kills and starts servers, which the kernel kills when that
    // thread exits.
    let (run, killed, restarted) = thread::scope(|scope| {
        let running = scope.spawn(|| run_until_lost(plan, load, &mut connections, &mut ledger));
        thread::sleep(plan.env.scaled(BEFORE));
        while ops.load(Ordering::Relaxed) == 0 && !running.is_finished() {
            thread::sleep(RETRY);
        }
        let killed = Instant::now();
        drop(server);
        let restarted = front_end.serve(plan, Some(&ready)).map(|server| (server, Instant::now()));
        let run = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (run, killed, restarted)
    });
    let (server, serving) = restarted?;
    let so_far = before_the_kill(front_end, run.outcome, report)?;
    let failed =
        connections.iter().map(|connection| connection.outstanding() as u64).sum::<u64>() + so_far.unknown;
    let (answered, is_absent) = match run.answered {
        Some(answer) => answer.map_err(|source| front_end.failed(source))?,
        None => call_until_answered(plan, front_end, &server)?,
    };
    if !is_absent {
        report.problems.push(format!("{front_end}: a restarted server has records that were never stored"));
    }
    let after = verify_again(plan, front_end, &server, report)?;
    if let Err(error) = server.stop(STOP_PATIENCE) {
        report.problems.push(format!("{front_end}: after a restart: {}", with_sources(&error)));
    }
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(Crash {
        front_end,
        window,
        answered: so_far.verified,
        failed,
        noticed_ms: ms(run.lost.saturating_duration_since(killed)),
        restarted_ms: ms(serving.saturating_duration_since(killed)),
        reconnected_ms: ms(answered.saturating_duration_since(serving.max(run.lost))),
        verified_after: after.verified,
    })
}

/// A load whose server was killed.
struct Run {
    /// Time at which the client detected the loss.
    lost: Instant,
    outcome: Result<LoadResult, LoadError>,
    /// For a client that reconnects by itself: the time of the first reply of the new server on the same connection,
    /// and whether it contained no value, as expected. Otherwise `None`.
    answered: Option<Result<(Instant, bool), TargetError>>,
}

/// Runs the load until its server is lost. A client that reconnects by itself then makes a first call to the new
/// server.
fn run_until_lost(
    plan: &KvMainPlan,
    load: Load,
    connections: &mut [Connection<FrontEndTarget>],
    ledger: &mut Ledger,
) -> Run {
    let outcome = load.run(connections, ledger, |_| {});
    let ended = Instant::now();
    let mut run = Run { lost: ended, outcome, answered: None };
    // Any of the connections may be the first that is re-established.
    let found = connections.iter_mut().map(Connection::target_mut).find(|target| target.has_restarted());
    if let (Err(LoadError { error: TargetError::Restarted, .. }), Some(target)) = (&run.outcome, found) {
        run.lost = target.lost_at().unwrap_or(ended);
        target.accept_restart();
        run.answered = Some(call_once(plan, target).map(|is_absent| (Instant::now(), is_absent)));
    }
    run
}

/// Returns the results of the run before the kill. A run that was not interrupted is a problem of the report.
fn before_the_kill(
    front_end: FrontEnd,
    outcome: Result<LoadResult, LoadError>,
    report: &mut Report,
) -> Result<LoadResult, ExperimentError> {
    let so_far = match outcome {
        Err(LoadError { error: TargetError::Lost(_) | TargetError::Restarted, so_far }) => *so_far,
        Err(source) => return Err(front_end.failed(source)),
        Ok(result) => {
            report
                .problems
                .push(format!("{front_end}: the client did not notice that its server was killed"));
            result
        }
    };
    let wrong = so_far.mismatches.iter().map(|mismatch| format!("{front_end}: before the kill: {mismatch}"));
    report.problems.extend(wrong);
    Ok(so_far)
}

/// Connects repeatedly, as users of plain sockets must. Returns the time of the new server's first reply, and whether
/// it contained no value.
fn call_until_answered(
    plan: &KvMainPlan,
    front_end: FrontEnd,
    server: &ServerProcess,
) -> Result<(Instant, bool), ExperimentError> {
    let deadline = Instant::now() + RECONNECT_PATIENCE;
    loop {
        let target = front_end.connect(&plan.reach, server.ready(), 1);
        match target.and_then(|mut target| call_once(plan, &mut target)) {
            Ok(is_absent) => return Ok((Instant::now(), is_absent)),
            Err(source) if Instant::now() > deadline => return Err(front_end.failed(source)),
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Reads one record from a new server. Returns whether it found no value, as expected.
fn call_once(plan: &KvMainPlan, target: &mut FrontEndTarget) -> Result<bool, TargetError> {
    fill::read_once(plan, target, 0, |outcome| outcome == Outcome::Absent)
}

/// Loads the records into the new server and runs a verified load on it.
fn verify_again(
    plan: &KvMainPlan,
    front_end: FrontEnd,
    server: &ServerProcess,
    report: &mut Report,
) -> Result<LoadResult, ExperimentError> {
    fill::fill(plan, front_end, server)?;
    let load = Load::new(load_plan(plan, 1));
    let target =
        front_end.connect(&plan.reach, server.ready(), 1).map_err(|source| front_end.failed(source))?;
    let script = vec![Op { kind: OpKind::Read, record: 0 }];
    let mut connections = [Connection::new(target, script)];
    let result = load.run(&mut connections, &mut Ledger::new(plan.records), |_| {});
    let result = result.map_err(|source| front_end.failed(source))?;
    report.problems.extend(
        result.problems().into_iter().map(|problem| format!("{front_end}: after a restart: {problem}")),
    );
    Ok(result)
}
