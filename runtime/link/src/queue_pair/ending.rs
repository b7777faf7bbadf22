//! How a queue pair ends: closed, then drained, then quiesced.

use farcall_verbs::{QpAttr, QpState, QpType, SendFlags, SendWr, UdTarget};

use super::{PairState, QueuePair};
use crate::retired::Address;

impl QueuePair {
    /// Starts draining: the pair goes to the error state, nothing new begins. Poll its completion queue, and call
    /// [`QueuePair::complete`], until [`QueuePair::is_drained`].
    pub fn close(&mut self) {
        if matches!(self.state, PairState::Draining | PairState::Drained) {
            return;
        }
        let was_connected = self.state == PairState::Connected;
        // An error here means that the pair is gone altogether, which is what we want.
        let gone = self.qp.modify(&QpAttr::to(QpState::Err)).is_err();
        self.state = PairState::Draining;
        if gone || !was_connected {
            self.reaped = self.posted;
        } else if self.posted > self.reaped {
            // Unsignalled requests that ended well before the error have no completion. This one has.
            self.marked = true;
            let mark = match self.qp.qp_type() {
                QpType::Ud => self.any_address().map(|address| SendWr::send_to(0, &[], address)),
                _ => Some(SendWr::write(0, &[], 0, 0)),
            };
            let posted = mark.map(|mark| self.post_one(mark.with_flags(SendFlags::SIGNALED), 0));
            if !matches!(posted, Some(Ok(_))) {
                self.reaped = self.posted;
            }
        }
        if gone {
            self.receives.completed = self.receives.posted;
        }
        self.try_end();
    }

    /// A destination of datagrams. There is one where any is under way.
    fn any_address(&self) -> Option<UdTarget> {
        let address = self.addresses.iter().flatten().next().or_else(|| self.retired.address());
        address.map(Address::target)
    }

    #[inline]
    pub(super) fn try_end(&mut self) {
        if self.state == PairState::Draining {
            // Receives without memory need not be waited for.
            let has_receives = self.receives.with_memory && self.receives.posted > self.receives.completed;
            if self.reaped == self.posted && !has_receives {
                self.state = PairState::Drained;
            }
        }
    }

    /// Whether nothing of ours is under way any more.
    pub fn is_drained(&self) -> bool {
        self.state == PairState::Drained
    }

    /// Whether, besides, nothing of the *peer's* can touch what we granted: only then may that memory be used again
    /// under a new pair.
    pub fn is_quiesced(&self) -> bool {
        self.is_drained() && self.qp.is_quiesced()
    }
}
