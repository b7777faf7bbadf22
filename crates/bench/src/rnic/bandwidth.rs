//! Large messages, several under way.

use super::RnicError;
use super::endpoint::RnicEnd;
use crate::baseline::BaselinePlan;
use crate::measure::{RoundTrips, ping_pong};
use farcall_verbs::{SendFlags, SendWr, Sge};

/// Messages under way.
const OUTSTANDING: usize = 4;

pub(super) fn writes(end: &mut RnicEnd, plan: &BaselinePlan) -> Result<RoundTrips, RnicError> {
    transfers(end, plan, |sges, addr, rkey| SendWr::write(0, sges, addr, rkey))
}

pub(super) fn reads(end: &mut RnicEnd, plan: &BaselinePlan) -> Result<RoundTrips, RnicError> {
    transfers(end, plan, |sges, addr, rkey| SendWr::read(0, sges, addr, rkey))
}

fn transfers(
    end: &mut RnicEnd,
    plan: &BaselinePlan,
    make: impl for<'a> Fn(&'a [Sge], u64, u32) -> SendWr<'a>,
) -> Result<RoundTrips, RnicError> {
    let sges = end.outgoing_sge();
    let wr = make(&sges, end.remote.addr, end.remote.rkey).with_flags(SendFlags::SIGNALED);
    let mut outstanding = 0;
    let result = ping_pong(plan.warm_up, plan.duration, |_| {
        while outstanding >= OUTSTANDING {
            outstanding -= end.poll()?.0;
        }
        // SAFETY: the outgoing half is neither read nor written while transfers are under way (their content is of no
        // interest), and outlives them: they are waited for below, or the queue pair is dropped before the region.
        unsafe { end.qp.post_send(&[wr])? };
        outstanding += 1;
        Ok::<(), RnicError>(())
    })?;
    end.wait_for_sends(outstanding)?;
    Ok(result)
}
