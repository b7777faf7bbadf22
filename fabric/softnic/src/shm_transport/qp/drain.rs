//! Send queue drained state: requests posted before it complete, requests posted in it wait (IBA 10.3.1.5).

/// State of a send queue that drains.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    /// Number of outstanding requests that were posted before.
    left: usize,
    /// `true` if an event must be raised when none is left.
    notify: bool,
}

impl Drain {
    pub(super) fn new(left: usize, notify: bool) -> Self {
        Self { left, notify }
    }

    /// Returns the number of outstanding requests that were posted before.
    pub(super) fn left(self) -> usize {
        self.left
    }

    /// Records that the oldest request has completed.
    pub(super) fn on_completed(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Returns whether the event must be raised now; only once.
    pub(super) fn take_event(&mut self) -> bool {
        self.left == 0 && std::mem::take(&mut self.notify)
    }
}
