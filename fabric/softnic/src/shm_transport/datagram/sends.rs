//! Completion of sends of a datagram queue pair.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farcall_shm::WaitTime;
use farcall_verbs::{AsyncEventKind, SendFlags, Wc, WcOpcode, WcStatus};

use super::outstanding_sends::{LockedSends, is_signalled};
use super::{BlockedDatagrams, DatagramCore, OutstandingSend};
use crate::process::{ServiceWork, is_service_thread};
use crate::shm_transport::CqSlot;
use crate::shm_transport::flight::Event;

impl DatagramCore {
    /// Returns the number of occupied send queue entries: completions not yet polled, and outstanding requests.
    pub(crate) fn unpolled(&self) -> usize {
        self.completions.len() + self.outstanding.count()
    }

    /// Completes a send. A success generates a completion only if it is signalled. Only the application thread calls
    /// it.
    #[inline]
    pub(crate) fn complete_send(&self, wr_id: u64, flags: SendFlags, status: WcStatus) {
        if !status.is_success() {
            self.stats.send_errors.increment();
            self.stats.record(Event::SendFailed as u64, status.0.into());
        }
        let must_deliver = !status.is_success() || is_signalled(self.signal_all, flags);
        if self.outstanding.count() > 0 && must_deliver {
            return self.complete_after_outstanding(Wc::ended(wr_id, self.qpn, WcOpcode::SEND, status));
        }
        if !must_deliver {
            return;
        }
        let completion = Wc::ended(wr_id, self.qpn, WcOpcode::SEND, status);
        // SAFETY: only the application thread pushes completions, and `post_send` reserved an entry for every request.
        unsafe { self.completions.push(completion) };
        self.send_slot.cq.announce(self.send_slot.bit, !status.is_success());
    }

    /// Like [`DatagramCore::complete_send`], but after outstanding requests.
    #[cold]
    pub(super) fn complete_after_outstanding(&self, completion: Wc) {
        let mut sends = self.outstanding.lock();
        sends.push(OutstandingSend { completion, must_deliver: true, wait: None });
        let has_ended = sends.has_ended();
        drop(sends);
        if has_ended {
            self.send_slot.cq.announce(self.send_slot.bit, !completion.status.is_success());
        }
    }

    /// Keeps a request in the send queue until its datagram is sent or dropped. Only the application thread calls it.
    #[cold]
    pub(crate) fn add_outstanding(&self, wr_id: u64, flags: SendFlags, wait: (Arc<BlockedDatagrams>, u64)) {
        let completion = Wc::ended(wr_id, self.qpn, WcOpcode::SEND, WcStatus::SUCCESS);
        let must_deliver = is_signalled(self.signal_all, flags);
        self.outstanding.lock().push(OutstandingSend { completion, must_deliver, wait: Some(wait) });
        self.shm.process.service.schedule(&self.is_listed, || self.this.clone());
        if self.send_slot.cq.readiness().keep(self.send_slot.bit) {
            self.continue_sends();
        }
    }

    /// Continues outstanding sends while the application thread sleeps or does other work.
    pub(super) fn continue_sends(&self) {
        if self.outstanding.count() == 0 {
            return;
        }
        let mut sends = self.outstanding.lock();
        sends.advance(&self.stats);
        if sends.has_ended() {
            self.send_slot.cq.announce(self.send_slot.bit, false);
        }
        self.finish_progress(sends);
    }

    /// Requests SQ_DRAINED when no send is outstanding, or cancels that. Only the application thread calls it.
    pub(crate) fn request_drained_event(&self, is_wanted: bool) {
        self.drained_event_wanted.store(is_wanted, Ordering::SeqCst);
        if is_wanted && !self.outstanding.lock().is_waiting() {
            self.raise_drained_if_due();
        }
    }

    #[cold]
    pub(super) fn raise_drained_if_due(&self) {
        if self.drained_event_wanted.swap(false, Ordering::SeqCst) {
            self.raise(AsyncEventKind::SqDrained);
        }
    }

    /// Continues outstanding sends, and completes those that have ended. Only the application thread calls it.
    #[inline]
    pub(crate) fn release_sends(&self) {
        if self.outstanding.count() > 0 {
            self.release_outstanding();
        }
    }

    #[cold]
    pub(super) fn release_outstanding(&self) {
        let mut sends = self.outstanding.lock();
        sends.advance(&self.stats);
        let mut has_pushed = false;
        while let Some(ended) = sends.pop() {
            if ended.must_deliver {
                // SAFETY: only the application thread pushes completions, and the request kept its entry since
                // `post_send`.
                unsafe { self.completions.push(ended.completion) };
                has_pushed = true;
            }
        }
        self.finish_progress(sends);
        if has_pushed {
            self.send_slot.cq.announce(self.send_slot.bit, false);
        }
    }

    /// Continues outstanding sends, and delivers those that have ended. Called by the polling thread of the send
    /// completion queue.
    #[cold]
    pub(super) fn poll_outstanding(&self, wc: &mut [Wc]) -> usize {
        let mut sends = self.outstanding.lock();
        sends.advance(&self.stats);
        let mut delivered = 0;
        while delivered < wc.len() {
            // Completions that the application thread has pushed in the meantime precede the requests in `sends`.
            // SAFETY: only the thread that polls the send completion queue pops completions, and it is the caller of
            // this function.
            if let Some(completion) = unsafe { self.completions.pop() } {
                wc[delivered] = completion;
                delivered += 1;
                continue;
            }
            let Some(ended) = sends.pop() else { break };
            if ended.must_deliver {
                wc[delivered] = ended.completion;
                delivered += 1;
            }
        }
        self.finish_progress(sends);
        delivered
    }

    /// Called after outstanding sends were progressed. Requests notifications from their destinations if the
    /// application thread sleeps, or appears to do other work.
    pub(super) fn finish_progress(&self, sends: LockedSends<'_>) {
        let is_waiting = sends.is_waiting();
        let is_app_thread = !is_service_thread();
        let was_attended = self.is_attended.swap(is_app_thread, Ordering::Relaxed);
        let CqSlot { cq, bit } = &self.send_slot;
        if is_waiting && (cq.readiness().keep(*bit) || !(is_app_thread || was_attended)) {
            sends.request_notifications(&self.stats);
        }
        drop(sends);
        if !is_waiting {
            self.raise_drained_if_due();
        }
    }

    /// Completes outstanding sends as flushed. Only the application thread calls it.
    pub(crate) fn flush_sends(&self) {
        let mut sends = self.outstanding.lock();
        let mut has_flushed = false;
        sends.end_all(|ended| {
            has_flushed = true;
            self.stats.send_errors.increment();
            let flushed = Wc::ended(ended.completion.wr_id, self.qpn, WcOpcode::SEND, WcStatus::WR_FLUSH_ERR);
            // SAFETY: only the application thread pushes completions, and the request kept its entry since `post_send`.
            unsafe { self.completions.push(flushed) };
        });
        drop(sends);
        if has_flushed {
            self.send_slot.cq.announce(self.send_slot.bit, true);
        }
    }

    /// Discards outstanding sends. Only the application thread calls it.
    pub(crate) fn discard_sends(&self) {
        self.outstanding.lock().end_all(drop);
    }

    /// Waits, for a bounded time, until stored datagrams are sent or dropped. Called before the queue pair is
    /// destroyed.
    pub(crate) fn linger(&self) {
        const LINGER: Duration = Duration::from_secs(2);
        let mut waited = WaitTime::default();
        while self.is_waiting() && waited.sample() < LINGER {
            self.release_sends();
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
