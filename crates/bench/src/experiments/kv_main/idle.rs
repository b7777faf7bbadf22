//! What servers cost when nobody calls, and what they hold when nobody is connected.

use super::{Door, DoorTarget, KvMainError, KvMainPlan, Post};
use crate::load::{Outcome, Request, Target, TargetError};
use crate::measure::{CpuMeter, Footprint, ProcessError};
use crate::report::Report;
use std::thread;
use std::time::{Duration, Instant};

/// After the last call, before idleness is measured.
const SETTLE: Duration = Duration::from_secs(1);
/// How long it is measured.
const WINDOW: Duration = Duration::from_secs(1);
/// More of a core than this is no idleness.
const CORE_SHARE_MAX: f64 = 0.01;
/// How long closed connections may take to be noticed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);

/// The share of a core that the server of each door used while idle with a client connected.
pub(super) fn measure(
    plan: &KvMainPlan,
    posts: &[Post],
    report: &mut Report,
) -> Result<Vec<(Door, f64)>, KvMainError> {
    let mut targets = Vec::new();
    for post in posts {
        let lost = |source| KvMainError::Connect { door: post.door, source };
        let mut target = post.door.connect(&plan.nic, post.server.ready(), 1).map_err(lost)?;
        get_record(plan, &mut target, 0).map_err(lost)?;
        targets.push(target);
    }
    thread::sleep(SETTLE);
    let meters = posts
        .iter()
        .map(|post| CpuMeter::start(post.server.pid()))
        .collect::<Result<Vec<_>, ProcessError>>()?;
    let start = Instant::now();
    thread::sleep(WINDOW);
    let mut shares = Vec::new();
    for (post, meter) in posts.iter().zip(&meters) {
        let share = meter.elapsed()?.core_share(start.elapsed());
        if share > CORE_SHARE_MAX {
            report.problems.push(format!(
                "{}: the idle server used {:.1} % of a core",
                post.door,
                share * 100.0
            ));
        }
        shares.push((post.door, share));
    }
    for (post, target) in posts.iter().zip(&mut targets) {
        let awake = get_record(plan, target, plan.records - 1);
        match awake {
            Ok(true) => {}
            Ok(false) => report.problems.push(format!("{}: wrong value after idling", post.door)),
            Err(error) => {
                report.problems.push(format!("{}: the call after idling failed: {error}", post.door))
            }
        }
    }
    Ok(shares)
}

/// Reads one record; whether it is intact.
fn get_record(plan: &KvMainPlan, target: &mut DoorTarget, record: u64) -> Result<bool, TargetError> {
    let mut key = vec![0; plan.shape.key_len_bytes()];
    target.submit(0, Request::Get { key: plan.shape.key(record, &mut key) })?;
    target.flush()?;
    let mut intact = None;
    while intact.is_none() {
        target.poll(|_, outcome| {
            intact =
                Some(matches!(outcome, Outcome::Value(value) if plan.shape.verify(record, value).is_ok()));
        })?;
    }
    Ok(intact == Some(true))
}

/// What a server holds once it noticed that its clients are gone.
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
