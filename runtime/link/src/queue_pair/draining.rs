//! Shutdown of a queue pair: closed, drained, quiesced.

use farcall_verbs::{QpAttr, QpState, QpType, SendFlags, SendWr, UdTarget};

use super::{QpLifecycle, QueuePair};
use crate::deferred_release::Address;

impl QueuePair {
    /// Starts draining: the queue pair enters the error state, and no further request starts. The caller polls the
    /// completion queue and calls [`QueuePair::complete`] until [`QueuePair::is_drained`] returns true.
    pub fn close(&mut self) {
        if matches!(self.state, QpLifecycle::Draining | QpLifecycle::Drained) {
            return;
        }
        let was_connected = self.state == QpLifecycle::Connected;
        // An error means that the queue pair no longer exists, so nothing is in flight.
        let gone = self.qp.modify(&QpAttr::to(QpState::Err)).is_err();
        self.state = QpLifecycle::Draining;
        if gone || !was_connected {
            self.reaped = self.posted;
        } else if self.posted > self.reaped {
            // Unsignalled requests that succeeded before the error have no completion of their own. This marker
            // request has one.
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
        self.update_drained();
    }

    /// Returns any datagram destination. One exists if a datagram is in flight.
    fn any_address(&self) -> Option<UdTarget> {
        let address = self.addresses.iter().flatten().next().or_else(|| self.deferred.address());
        address.map(Address::target)
    }

    #[inline]
    pub(super) fn update_drained(&mut self) {
        if self.state == QpLifecycle::Draining {
            // Receives without memory need not complete.
            let has_receives = self.receives.with_memory && self.receives.posted > self.receives.completed;
            if self.reaped == self.posted && !has_receives {
                self.state = QpLifecycle::Drained;
            }
        }
    }

    /// Returns whether no request of this process is in flight any more.
    pub fn is_drained(&self) -> bool {
        self.state == QpLifecycle::Drained
    }

    /// Returns whether, in addition, no request of the *peer* can access granted memory any more. Only then may the
    /// memory be reused with a new queue pair.
    pub fn is_quiesced(&self) -> bool {
        self.is_drained() && self.qp.is_quiesced()
    }
}
