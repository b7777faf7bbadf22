//! A warning that is told once, however often its cause comes.

use std::time::{Duration, Instant};

/// What begins so soon after it was told is taken for the same.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Bounds how often something is logged: once a minute. A log that peers can fill is a way to fill a disk.
#[derive(Debug, Default)]
pub struct Seldom {
    told: Option<Instant>,
    untold: u64,
}

impl Seldom {
    /// It happened: whether to tell, and then how often it happened since it was told last, this time included.
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
    fn what_comes_often_is_told_once_and_counted() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.count(), Some(1));
        assert_eq!((seldom.count(), seldom.count()), (None, None));
        seldom.told = seldom.told.and_then(|told| told.checked_sub(TELL_AGAIN_AFTER));
        assert_eq!(seldom.count(), Some(3));
    }
}
