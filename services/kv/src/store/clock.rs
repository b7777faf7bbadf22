//! Clock of a server.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Starts at Unix time and then follows the monotonic clock, so that a change of the wall clock expires no items.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    /// Starts the clock at the current time.
    pub fn start() -> Self {
        Self::start_at(unix_ms())
    }

    fn start_at(started_ms: u64) -> Self {
        Self { started: Instant::now(), started_ms }
    }

    /// Returns the time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.started_ms + self.started.elapsed().as_millis() as u64
    }
}

/// Returns the time of the wall clock in milliseconds.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Config, Partition, Put};

    const NOW_MS: u64 = 1_000_000;

    #[test]
    fn expires_an_item_by_the_clock_despite_an_old_operation_time() {
        let mut partition = Partition::new(Config::default(), NOW_MS).unwrap();
        let router = Config::default().router();
        let mut put = |name: &[u8], expires_ms| {
            let key = router.key(name).unwrap();
            partition.put(&key, &Put { value: b"x", expires_ms, ..Put::default() }, NOW_MS).unwrap();
        };
        put(b"late", NOW_MS + 5_000);
        put(b"later", NOW_MS + 3_600_000);
        put(b"never", 0);
        let is_found = |partition: &mut Partition, name: &[u8]| {
            partition.get(&router.key(name).unwrap(), NOW_MS).is_some()
        };
        assert!(is_found(&mut partition, b"late"));
        partition.set_clock(Clock::start_at(NOW_MS + 5_000));
        assert!(!is_found(&mut partition, b"late"));
        assert!(is_found(&mut partition, b"later") && is_found(&mut partition, b"never"));
    }
}
