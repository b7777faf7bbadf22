//! How well a packet fits what a queue pair expects next of its peer: what a forger would have to guess.

use farcall_verbs::QpType;

use super::Qp;
use crate::packet::{Operation, Packet};

/// Packets of an unreliable connection that may be missing before one that still is its peer's.
const UNRELIABLE_GAP_MAX: u32 = 1 << 16;

/// How well a packet fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It has the one sequence number that is expected next. Of answers: that of the oldest packet without one, or of
    /// the newest.
    Next,
    /// Its sequence number is one of those that are outstanding.
    Outstanding,
    /// Its sequence number says nothing about its sender.
    Unrelated,
}

impl<S, R> Qp<S, R> {
    /// Returns how well a packet that came in fits the sequence numbers of this queue pair. [`Qp::arrived`] follows if
    /// its sender is taken for the peer.
    #[must_use]
    pub fn fit(&self, packet: &Packet) -> Fit {
        let psn = packet.psn;
        if packet.transport != self.config.transport || packet.operation == Operation::CongestionNotification
        {
            return Fit::Unrelated;
        }
        if packet.operation.is_answer() {
            // What was sent last, and what was before the requester went back.
            let newest = [self.sends.next_to_send().previous(), self.sends.next_psn.previous()];
            return match self.runs() && self.sends.is_in_flight(psn) {
                true if psn == self.sends.unacknowledged || newest.contains(&psn) => Fit::Next,
                true => Fit::Outstanding,
                false => Fit::Unrelated,
            };
        }
        let expected = self.responder.expected;
        match self.config.transport {
            _ if !self.state.responds() => Fit::Unrelated,
            _ if psn == expected => Fit::Next,
            QpType::Uc if psn.distance_from(expected) < UNRELIABLE_GAP_MAX => Fit::Outstanding,
            _ => Fit::Unrelated,
        }
    }
}
