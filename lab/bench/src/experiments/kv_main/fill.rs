//! Loading the records, and reading all of them back.

use super::{ExperimentError, FrontEnd, FrontEndTarget, KvMainPlan};
use crate::experiments::server::ServerProcess;
use crate::load::{Outcome, Request, Target, TargetError};

/// Outstanding requests while loading.
const WINDOW: u32 = 32;

/// Stores version 0 of every record, then reads all of them back and checks them.
pub(super) fn fill(
    plan: &KvMainPlan,
    front_end: FrontEnd,
    server: &ServerProcess,
) -> Result<(), ExperimentError> {
    let connect = |error: TargetError| front_end.failed(error);
    let mut target = front_end.connect(&plan.reach, server.ready(), WINDOW).map_err(connect)?;
    let (mut key, mut value) = (vec![0; plan.shape.key_len_bytes()], vec![0; plan.shape.value_len_bytes()]);
    let mut refused = 0u64;
    each_record(
        plan,
        &mut target,
        |record, slot, target| {
            let key = plan.shape.key(record, &mut key);
            let value = plan.shape.value(record, 0, &mut value);
            target.submit(slot, Request::Put { key, value })
        },
        |_, outcome| refused += u64::from(outcome != Outcome::Stored),
    )
    .map_err(connect)?;
    let (mut absent, mut wrong, mut unanswered) = (0u64, 0u64, 0u64);
    each_record(
        plan,
        &mut target,
        |record, slot, target| target.submit(slot, Request::Get { key: plan.shape.key(record, &mut key) }),
        |record, outcome| match outcome {
            Outcome::Value(value) if plan.shape.verify_between(record, value, 0, 0).is_ok() => {}
            Outcome::Value(_) | Outcome::Stored => wrong += 1,
            Outcome::Absent => absent += 1,
            Outcome::Refused | Outcome::Unknown => unanswered += 1,
        },
    )
    .map_err(connect)?;
    if refused + absent + wrong + unanswered > 0 {
        let what = format!(
            "of {} records, {refused} were not stored; then {absent} were not there, {wrong} had other bytes, and for \
             {unanswered} no answer came",
            plan.records
        );
        return Err(connect(TargetError::Protocol(what)));
    }
    Ok(())
}

/// Submits one request for every record, a window at a time, and passes each outcome to `done` with its record.
fn each_record<T: Target>(
    plan: &KvMainPlan,
    target: &mut T,
    mut submit: impl FnMut(u64, u32, &mut T) -> Result<(), TargetError>,
    mut done: impl FnMut(u64, Outcome<'_>),
) -> Result<(), TargetError> {
    let (mut first, records) = (0, plan.records);
    while first < records {
        if plan.env.is_late() {
            let what = format!(
                "{first} of {records} records were written or read back when the time had expired; load fewer: --records"
            );
            return Err(TargetError::TimeExpired(what));
        }
        let count = (records - first).min(u64::from(WINDOW)) as u32;
        for slot in 0..count {
            submit(first + u64::from(slot), slot, target)?;
        }
        target.flush()?;
        let mut left = count;
        while left > 0 {
            target.poll(|slot, outcome| {
                left -= 1;
                done(first + u64::from(slot), outcome);
            })?;
        }
        first += u64::from(count);
    }
    Ok(())
}

/// Reads one record and applies a check to the outcome.
pub(super) fn read_once(
    plan: &KvMainPlan,
    target: &mut FrontEndTarget,
    record: u64,
    judge: impl Fn(Outcome<'_>) -> bool,
) -> Result<bool, TargetError> {
    /// A slot that no operation used that was outstanding when a server was lost.
    const SLOT: u32 = u32::MAX;
    let mut key = vec![0; plan.shape.key_len_bytes()];
    target.submit(SLOT, Request::Get { key: plan.shape.key(record, &mut key) })?;
    target.flush()?;
    let mut verdict = None;
    loop {
        target.poll(|slot, outcome| {
            if slot == SLOT {
                verdict = Some(judge(outcome));
            }
        })?;
        if let Some(verdict) = verdict {
            return Ok(verdict);
        }
    }
}
