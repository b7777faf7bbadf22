//! The cheapest way into the kernel and back.

use super::BaselinePlan;
use crate::measure::{RoundTrips, ping_pong};
use std::convert::Infallible;

/// Calls of `getppid`, which the kernel answers at once and no library caches.
pub(super) fn calls(plan: &BaselinePlan) -> RoundTrips {
    let result = ping_pong(plan.warm_up, plan.duration, |_| {
        std::hint::black_box(rustix::process::getppid());
        Ok::<_, Infallible>(())
    });
    match result {
        Ok(calls) => calls,
        Err(never) => match never {},
    }
}
