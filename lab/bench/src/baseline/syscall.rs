//! The cheapest way into the kernel and back.

use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, PeerError};

/// Calls of `getppid`, which the kernel answers at once and no library caches.
pub(super) fn calls(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    ping_pong(plan.warm_up, plan.duration, |_| {
        std::hint::black_box(rustix::process::getppid());
        Ok(())
    })
}
