//! The send queue drained state: what was posted before goes to its end, what is posted in it waits (IBA 10.3.1.5).

use farcall_verbs::AsyncEventKind;

use super::QpCore;
use super::send::SendSide;

/// A send queue that drains.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    /// Requests that were posted before.
    pub(crate) left: usize,
    /// Whether to tell when there is none left.
    notify: bool,
}

impl SendSide {
    pub(crate) fn begin_drain(&mut self, core: &QpCore, notify: bool) {
        self.drain = Some(Drain { left: self.waiting.len(), notify });
        self.tell_drained(core);
    }

    /// The oldest request has ended.
    pub(crate) fn drained_one(&mut self, core: &QpCore) {
        if let Some(drain) = &mut self.drain {
            drain.left = drain.left.saturating_sub(1);
            self.tell_drained(core);
        }
    }

    fn tell_drained(&mut self, core: &QpCore) {
        if let Some(drain) = &mut self.drain
            && drain.left == 0
            && std::mem::take(&mut drain.notify)
        {
            core.raise(AsyncEventKind::SqDrained);
        }
    }

    /// Back in RTS: executes what was kept.
    pub(crate) fn end_drain(&mut self, core: &QpCore) {
        self.drain = None;
        self.resume(core);
    }
}
