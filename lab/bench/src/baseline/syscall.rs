//! Cost of the cheapest system call.

use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, PeerError};

/// Measures calls of `getppid`, which the kernel completes immediately and no library caches.
pub(super) fn calls(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    ping_pong(plan.warm_up, plan.duration, |_| {
        std::hint::black_box(rustix::process::getppid());
        Ok(())
    })
}
