//! Cost of servers without calls, and their resources without connections.

use super::fill::read_once;
use super::{ExperimentError, FrontEnd, FrontEndTarget, KvMainPlan, ServerUnderTest};
use crate::load::{Outcome, TargetError};
use crate::measure::{CpuMeter, Footprint, ProcessError};
use crate::report::Report;
use std::thread;
use std::time::{Duration, Instant};

/// Time after the last call before idleness is measured, with the default duration, as all times here.
const SETTLE: Duration = Duration::from_secs(1);
/// Duration of the measurement.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum share of a core that counts as idle.
const CORE_SHARE_MAX: f64 = 0.01;
/// Timeout for the server to notice closed connections.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);

/// Returns the duration of the idle measurement under `plan`.
pub(super) fn window(plan: &KvMainPlan) -> Duration {
    plan.env.scaled(WINDOW)
}

/// Returns the share of a core that the server of each front end used while idle with one connected client.
pub(super) fn measure(
    plan: &KvMainPlan,
    tested_servers: &[ServerUnderTest],
    report: &mut Report,
) -> Result<Vec<(FrontEnd, f64)>, ExperimentError> {
    let mut targets = Vec::new();
    for tested in tested_servers {
        let lost = |error: TargetError| tested.front_end.failed(error);
        let mut target = tested.front_end.connect(&plan.reach, tested.server.ready(), 1).map_err(lost)?;
        get_record(plan, &mut target, 0).map_err(lost)?;
        targets.push(target);
    }
    thread::sleep(plan.env.scaled(SETTLE));
    let meters = tested_servers
        .iter()
        .filter_map(|tested| tested.server.pid())
        .map(CpuMeter::start)
        .collect::<Result<Vec<_>, ProcessError>>()?;
    thread::sleep(window(plan));
    let mut shares = Vec::new();
    for (tested, meter) in tested_servers.iter().zip(&meters) {
        let share = meter.core_share()?;
        let is_ours = !matches!(tested.front_end, FrontEnd::Foreign(..));
        if is_ours && share > CORE_SHARE_MAX {
            report.problems.push(format!(
                "{}: the idle server used {:.1} % of a core",
                tested.front_end,
                share * 100.0
            ));
        }
        shares.push((tested.front_end, share));
    }
    for (tested, target) in tested_servers.iter().zip(&mut targets) {
        let awake = get_record(plan, target, plan.records - 1);
        match awake {
            Ok(true) => {}
            Ok(false) => report.problems.push(format!("{}: wrong value after idling", tested.front_end)),
            Err(error) => {
                report.problems.push(format!("{}: the call after idling failed: {error}", tested.front_end))
            }
        }
    }
    Ok(shares)
}

/// Reads one record. Returns whether its value is valid.
fn get_record(plan: &KvMainPlan, target: &mut FrontEndTarget, record: u64) -> Result<bool, TargetError> {
    let is_intact = |outcome: Outcome<'_>| matches!(outcome, Outcome::Value(value) if plan.shape.verify(record, value).is_ok());
    read_once(plan, target, record, is_intact)
}

/// Returns the resources of a server after it has noticed that its clients have disconnected.
pub(super) fn settled_footprint(pid: u32, before: Footprint) -> Result<Footprint, ProcessError> {
    let deadline = Instant::now() + CLOSE_PATIENCE;
    loop {
        let now = Footprint::of(pid)?;
        if now.open_fds <= before.open_fds || Instant::now() > deadline {
            return Ok(now);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
