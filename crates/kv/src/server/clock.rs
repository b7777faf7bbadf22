//! The time of a server.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Starts at Unix time and follows the monotonic clock from then on: whoever sets the wall clock expires nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), started_ms: unix_ms() }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.started_ms + self.started.elapsed().as_millis() as u64
    }
}

/// What the wall clock shows, in milliseconds.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
