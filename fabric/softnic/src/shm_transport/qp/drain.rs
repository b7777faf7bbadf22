//! Send queue drained state: requests posted before it complete, requests posted in it wait (IBA 10.3.1.5).

use farcall_verbs::AsyncEventKind;

use super::QpCore;
use super::send::SendSide;

/// State of a send queue that drains.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    /// Number of outstanding requests that were posted before.
    pub(crate) left: usize,
    /// `true` if an event must be raised when none is left.
    notify: bool,
}

impl SendSide {
    pub(crate) fn begin_drain(&mut self, core: &QpCore, notify: bool) {
        self.drain = Some(Drain { left: self.waiting.len(), notify });
        self.raise_drained(core);
    }

    /// Records that the oldest request has completed.
    pub(crate) fn on_send_drained(&mut self, core: &QpCore) {
        if let Some(drain) = &mut self.drain {
            drain.left = drain.left.saturating_sub(1);
            self.raise_drained(core);
        }
    }

    fn raise_drained(&mut self, core: &QpCore) {
        if let Some(drain) = &mut self.drain
            && drain.left == 0
            && std::mem::take(&mut drain.notify)
        {
            core.raise(AsyncEventKind::SqDrained);
        }
    }

    /// Called on the return to RTS: executes the requests posted in the meantime.
    pub(crate) fn end_drain(&mut self, core: &QpCore) {
        self.drain = None;
        self.resume(core);
    }
}
