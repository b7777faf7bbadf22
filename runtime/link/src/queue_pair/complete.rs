//! Processing of completions.

use farcall_verbs::{Wc, WcStatus};

use super::{Completed, QpLifecycle, QueuePair};
use crate::Ticket;
use crate::work_request::{TICKET_MASK, is_receive, receive_tag, send_tag};

impl QueuePair {
    /// Records a completion of this queue pair.
    #[inline]
    pub fn complete(&mut self, wc: &Wc) -> Completed {
        let (is_receive, ticket) = (is_receive(wc), wc.wr_id & TICKET_MASK);
        if is_receive {
            self.receives.completed += 1;
        } else if wc.status.is_success() || ticket != 0 {
            // Unsignalled requests of a chain have no ticket. If one fails, its completion does not imply that earlier
            // requests completed.
            self.reap(ticket);
        }
        self.release_deferred();
        if !wc.status.is_success() {
            return self.fail(wc.status);
        }
        // This may be the last completion of the requests that succeeded before the error.
        self.update_drained();
        if is_receive {
            return Completed::Received { tag: receive_tag(wc), len_bytes: wc.byte_len, imm: wc.imm() };
        }
        Completed::Send { tag: send_tag(wc), ticket: Ticket(self.reaped) }
    }

    /// Records `count` successful receives, like [`QueuePair::complete`] for each.
    #[inline]
    pub fn complete_receives(&mut self, count: u32) {
        self.receives.completed += u64::from(count);
        self.update_drained();
    }

    #[inline]
    fn reap(&mut self, low_bits: u64) {
        // Reconstruct the full count from its low bits: it is at most the queue depth below `posted`.
        let behind = self.posted.wrapping_sub(low_bits) & TICKET_MASK;
        self.reaped = self.reaped.max(self.posted.saturating_sub(behind));
    }

    #[cold]
    fn fail(&mut self, status: WcStatus) -> Completed {
        if self.state == QpLifecycle::Connected {
            self.failure.get_or_insert(status);
            self.close();
            return Completed::Failed(status);
        }
        self.update_drained();
        Completed::Flushed
    }
}
