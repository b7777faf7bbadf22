//! Small messages in chains: one doorbell and one signalled request for many messages.

use super::RnicError;
use super::endpoint::RnicEnd;
use crate::baseline::BaselinePlan;
use crate::measure::{RoundTrips, ping_pong};
use farcall_verbs::{SendWr, Sge};

/// Messages in a chain.
pub(super) const CHAIN: usize = 32;
/// Chains under way.
const CHAINS_OUTSTANDING: usize = 8;
/// Receives kept posted, more than can be under way.
const RECEIVES: usize = 768;

pub(super) fn sends(end: &mut RnicEnd, plan: &BaselinePlan) -> Result<RoundTrips, RnicError> {
    chains(end, plan, |sges, _, _| SendWr::send(0, sges))
}

pub(super) fn writes(end: &mut RnicEnd, plan: &BaselinePlan) -> Result<RoundTrips, RnicError> {
    chains(end, plan, |sges, addr, rkey| SendWr::write(0, sges, addr, rkey))
}

fn chains(
    end: &mut RnicEnd,
    plan: &BaselinePlan,
    make: impl for<'a> Fn(&'a [Sge], u64, u32) -> SendWr<'a>,
) -> Result<RoundTrips, RnicError> {
    let sges = end.outgoing_sge();
    let wr = make(&sges, end.remote.addr, end.remote.rkey);
    let mut chain = [wr.with_flags(end.flags(false)); CHAIN];
    chain[CHAIN - 1] = wr.with_flags(end.flags(true));
    let mut outstanding = 0;
    let result = ping_pong(plan.warm_up, plan.duration, |_| {
        while outstanding >= CHAINS_OUTSTANDING {
            outstanding -= end.poll()?.0;
        }
        // SAFETY: the outgoing half is not written while chains are under way, and outlives them: they are waited for
        // below, or the queue pair is dropped before the region.
        unsafe { end.qp.post_send(&chain)? };
        outstanding += 1;
        Ok::<(), RnicError>(())
    })?;
    end.wait_for_sends(outstanding)?;
    Ok(result)
}

/// The receiving end of [`sends`]: takes messages and posts receives again, in batches.
pub(super) fn absorb_sends(end: &mut RnicEnd) -> Result<(), RnicError> {
    end.post_receives(RECEIVES)?;
    let mut consumed = 0;
    loop {
        consumed += end.poll()?.1;
        if consumed >= CHAIN {
            end.post_receives(consumed)?;
            consumed = 0;
        }
    }
}
