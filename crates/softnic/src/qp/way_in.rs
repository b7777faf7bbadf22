//! A peer's way into our memory: where it says what it accesses, and whose death ends its accesses.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hazard;
use crate::peer::Peer;
use crate::regions::Granted;
use crate::rendezvous::has_died;
use crate::shared::SharedMem;

/// For how long an access under way is waited for without giving the processor away for longer than a turn.
const QUICK: Duration = Duration::from_millis(1);

/// An access under way, told to whoever asks whether it concerns him.
pub(crate) fn is_inside(hazard: u64, rkey: u32, granted: Granted) -> bool {
    hazard == hazard::of_region(rkey) || (granted.receive && hazard == hazard::RECEIVES)
}

#[derive(Clone)]
pub(crate) struct WayIn {
    pub(super) mem: SharedMem,
    /// Set when connected.
    pub(super) peer: Option<Arc<Peer>>,
    /// Until then: the life of the process that was granted.
    pub(super) initiator: Option<Arc<OwnedFd>>,
}

impl WayIn {
    /// Whether no access that `concerns` selects by its hazard is under way.
    pub(crate) fn is_clear(&self, concerns: impl Fn(u64) -> bool) -> bool {
        !concerns(hazard::current(&self.mem))
            || self.peer.as_ref().is_some_and(|peer| peer.check_dead())
            || self.initiator.as_ref().is_some_and(|fd| has_died(fd))
    }
}

/// Waits until `is_clear`, but not beyond `deadline`; returns whether it is.
pub(crate) fn wait_until(deadline: Instant, is_clear: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_clear() {
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        if now - begun < QUICK {
            std::thread::yield_now();
        } else {
            std::thread::sleep(QUICK);
        }
    }
    true
}
