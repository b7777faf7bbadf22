//! Redis, filled and measured by the load generator.

use super::NotHere;
use super::confinement::Confinement;
use super::databases::{Asked, DatabaseFigures, Mix, RECORDS};
use crate::experiments::server::{ServerError, ServerProcess};
use crate::experiments::{ExperimentEnv, ExperimentError, foreign_server};
use crate::foreign_store::{ForeignStore, Socket};
use crate::load::{Connection, Ledger, Load, LoadPlan, Outcome, RedisTarget, Request, Target, TargetError};
use crate::measure::{pin_thread, resident_bytes};
use crate::report::Report;
use crate::workload::{Chooser, Distribution, Op, OpKind, RecordShape};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::time::Duration;

const KEY_LEN_BYTES: usize = 16;
const VALUE_LEN_BYTES: usize = 1_000;
/// Outstanding requests while filling.
const WINDOW: u32 = 32;
/// Number of drawn operations, which are repeated cyclically.
const DRAWN: usize = 1 << 16;
/// Timeout of a reply, which may be paged in from a slow disk, and of the exit.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts Redis, fills it, measures it under each mix, and ends it.
pub(super) fn run(
    confinement: &Confinement,
    duration: Duration,
    seed: u64,
    env: &ExperimentEnv,
    report: &mut Report,
) -> Result<Asked, ExperimentError> {
    let dir = tempfile::tempdir()?;
    let store = ForeignStore::Redis;
    let cores = [env.server_core, env.client_core];
    let socket = dir.path().join("redis");
    let command = confinement.command(store.program());
    let server = match foreign_server::start(store, command, Socket::Unix, socket.clone(), 0, &cores) {
        Ok(server) => server,
        Err(missing @ ServerError::NotInstalled(_)) => return Err(NotHere(missing.to_string()).into()),
        Err(error) => return Err(error.into()),
    };
    pin_thread(env.client_core)?;
    let shape = RecordShape::new(KEY_LEN_BYTES, VALUE_LEN_BYTES)?;
    fill(&mut RedisTarget::connect_unix(&socket, PATIENCE)?, shape)?;
    let mut ledger = Ledger::new(RECORDS);
    let plan = LoadPlan { window: 1, warm_up: duration / 5, duration, shape, loaded: RECORDS, share: None };
    let mut ask = |mix| {
        let target = RedisTarget::connect_unix(&socket, PATIENCE)?;
        let mut connections = [Connection::new(target, script(mix, seed))];
        let result = Load::new(plan).run(&mut connections, &mut ledger, |_| {})?;
        report.problems.extend(result.problems());
        let p99_us = result.latency.p99_ns as f64 / 1e3;
        Ok::<_, ExperimentError>(DatabaseFigures { per_second: result.ops_per_second(), p99_us })
    };
    let (etc, sys) = (ask(Mix::Etc)?, ask(Mix::Sys)?);
    let peak_bytes = server.pid().map_or(Ok(0), resident_bytes)?;
    end(server)?;
    Ok(Asked { etc, sys, peak_bytes })
}

/// Ends the server. A failure status is ignored: the pager reports one when it is requested to end.
fn end(server: ServerProcess) -> Result<(), ServerError> {
    match server.stop(PATIENCE) {
        Ok(()) | Err(ServerError::Failed(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns operations with a Zipfian distribution.
fn script(mix: Mix, seed: u64) -> Vec<Op> {
    let mut random = Pcg64::seed_from_u64(seed);
    let chooser = Chooser::new(Distribution::Zipfian, RECORDS);
    let draw = |_| {
        let reads = random.random_range(0..100) < mix.reads_percent();
        let kind = if reads { OpKind::Read } else { OpKind::Update };
        Op { kind, record: chooser.sample(&mut random) }
    };
    (0..DRAWN).map(draw).collect()
}

/// Stores version 0 of every record.
fn fill(target: &mut RedisTarget, shape: RecordShape) -> Result<(), ExperimentError> {
    let (mut key, mut value) = ([0; KEY_LEN_BYTES], [0; VALUE_LEN_BYTES]);
    let mut refused = 0_u64;
    let mut send = |records: std::ops::Range<u64>| -> Result<(), TargetError> {
        for (slot, record) in (0..).zip(records) {
            let (key, value) = (shape.key(record, &mut key), shape.value(record, 0, &mut value));
            target.submit(slot, Request::Put { key, value })?;
        }
        target.flush()?;
        // Waits for all outstanding replies.
        target.poll(|_, outcome| refused += u64::from(outcome != Outcome::Stored))
    };
    for first in (0..RECORDS).step_by(WINDOW as usize) {
        send(first..(first + u64::from(WINDOW)).min(RECORDS))?;
    }
    match refused {
        0 => Ok(()),
        many => Err(format!("Redis did not store {many} of {RECORDS} records").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_shares_of_their_mix() {
        for (mix, percent) in [(Mix::Etc, 95.0), (Mix::Sys, 75.0)] {
            let script = script(mix, 7);
            let reads = script.iter().filter(|op| op.kind == OpKind::Read).count();
            let share = 100.0 * reads as f64 / script.len() as f64;
            assert!((share - percent).abs() < 1.0, "{share} % of {percent} %");
            assert!(script.iter().all(|op| op.record < RECORDS));
        }
    }
}
