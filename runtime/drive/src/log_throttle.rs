//! Rate limit for warnings: logs a warning once, however often its cause occurs.

use std::time::{Duration, Instant};

/// Time after a warning during which further occurrences are attributed to the same cause.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Limits a log message to once a minute. A log that peers can fill could fill a disk.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last_logged: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    /// Records an occurrence. If it is to be logged, returns the number of occurrences since the last message, this
    /// one included.
    #[cold]
    pub fn count(&mut self) -> Option<u64> {
        self.suppressed += 1;
        let now = Instant::now();
        let is_due =
            self.last_logged.is_none_or(|last_logged| now.duration_since(last_logged) >= REPEAT_INTERVAL);
        is_due.then(|| {
            self.last_logged = Some(now);
            std::mem::take(&mut self.suppressed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_frequent_event_once_and_counts_it() {
        let mut throttle = LogThrottle::default();
        assert_eq!(throttle.count(), Some(1));
        assert_eq!((throttle.count(), throttle.count()), (None, None));
        throttle.last_logged =
            throttle.last_logged.and_then(|last_logged| last_logged.checked_sub(REPEAT_INTERVAL));
        assert_eq!(throttle.count(), Some(3));
    }
}
