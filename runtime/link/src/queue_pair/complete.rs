//! What completions tell of a queue pair's work requests.

use farcall_verbs::{Wc, WcStatus};

use super::{Completed, PairState, QueuePair};
use crate::Ticket;
use crate::work_request::{TICKET_MASK, is_receive, receive_tag, send_tag};

impl QueuePair {
    /// Accounts for a completion of this pair.
    #[inline]
    pub fn complete(&mut self, wc: &Wc) -> Completed {
        let (is_receive, ticket) = (is_receive(wc), wc.wr_id & TICKET_MASK);
        if is_receive {
            self.receives.completed += 1;
        } else if wc.status.is_success() || ticket != 0 {
            // An unsignalled request of a chain has no ticket; one that fails stands for none before it.
            self.reap(ticket);
        }
        self.release_retired();
        if !wc.status.is_success() {
            return self.fail(wc.status);
        }
        // It may be the last one, of what ended well before the error.
        self.try_end();
        if is_receive {
            return Completed::Received { tag: receive_tag(wc), len_bytes: wc.byte_len, imm: wc.imm() };
        }
        Completed::Send { tag: send_tag(wc), ticket: Ticket(self.reaped) }
    }

    /// Accounts for `count` receives of this pair that ended well: as [`QueuePair::complete`] for each.
    #[inline]
    pub fn complete_receives(&mut self, count: u32) {
        self.receives.completed += u64::from(count);
        self.try_end();
    }

    #[inline]
    fn reap(&mut self, low_bits: u64) {
        // Rebuild the full count from its low bits: never more than the queue's depth behind `posted`.
        let behind = self.posted.wrapping_sub(low_bits) & TICKET_MASK;
        self.reaped = self.reaped.max(self.posted.saturating_sub(behind));
    }

    #[cold]
    fn fail(&mut self, status: WcStatus) -> Completed {
        if self.state == PairState::Connected {
            self.failure.get_or_insert(status);
            self.close();
            return Completed::Failed(status);
        }
        self.try_end();
        Completed::Flushed
    }
}
