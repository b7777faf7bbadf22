//! Rate limit for warnings: logs a warning once, however often its cause occurs.

use std::time::{Duration, Instant};

/// Time after a warning during which further occurrences are attributed to the same cause.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Limits a log message to once a minute. A log that peers can fill could fill a disk.
#[derive(Debug, Default)]
pub struct Seldom {
    told: Option<Instant>,
    untold: u64,
}

impl Seldom {
    /// Records an occurrence. If it is to be logged, returns the number of occurrences since the last message, this
    /// one included.
    #[cold]
    pub fn count(&mut self) -> Option<u64> {
        self.untold += 1;
        let now = Instant::now();
        let is_due = self.told.is_none_or(|told| now.duration_since(told) >= TELL_AGAIN_AFTER);
        is_due.then(|| {
            self.told = Some(now);
            std::mem::take(&mut self.untold)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_a_frequent_event_once_and_counts_it() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.count(), Some(1));
        assert_eq!((seldom.count(), seldom.count()), (None, None));
        seldom.told = seldom.told.and_then(|told| told.checked_sub(TELL_AGAIN_AFTER));
        assert_eq!(seldom.count(), Some(3));
    }
}
