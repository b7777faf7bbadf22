//! The send queue drained state: what was posted before goes to its end, what is posted in it waits (IBA 10.3.1.5).

use farcall_verbs::{AsyncEventKind, SendWr};

use super::QpCore;
use super::send::SendSide;

/// A send queue that drains.
#[derive(Clone, Copy)]
pub(super) struct Drain {
    /// Requests that were posted before.
    pub(super) left: usize,
    /// Whether to tell when there is none left.
    notify: bool,
}

impl SendSide {
    pub(super) fn begin_drain(&mut self, core: &QpCore, notify: bool) {
        self.drain = Some(Drain { left: self.waiting.len(), notify });
        self.tell_drained(core);
    }

    /// Keeps a request for later.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[cold]
    pub(super) unsafe fn hold(&mut self, core: &QpCore, wr: &SendWr<'_>) {
        // SAFETY: the caller's promise.
        unsafe { self.waiting.push(wr, core.cap().max_send_wr as usize) };
    }

    /// The oldest request has ended.
    pub(super) fn drained_one(&mut self, core: &QpCore) {
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
    pub(super) fn end_drain(&mut self, core: &QpCore) {
        self.drain = None;
        self.resume(core);
    }
}
