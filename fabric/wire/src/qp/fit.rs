//! How well a packet fits the sequence numbers that a queue pair expects from its peer, which a forger would have to
//! guess.

use farcall_verbs::QpType;

use super::Qp;
use crate::packet::{Operation, Packet};

/// Maximum number of packets of an unreliable connection that may be missing before one that is still attributed to the
/// peer.
const UNRELIABLE_GAP_MAX: u32 = 1 << 16;

/// Degree to which a packet fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It has the sequence number that is expected next. For responses: that of the oldest packet without a response,
    /// or of the newest packet.
    Next,
    /// Its sequence number is an outstanding one.
    Outstanding,
    /// Its sequence number says nothing about its sender.
    Unrelated,
}

impl<S, R> Qp<S, R> {
    /// Returns how well a received packet fits the sequence numbers of this queue pair. If the caller attributes it to
    /// the peer, it calls [`Qp::arrived`].
    #[must_use]
    pub fn fit(&self, packet: &Packet) -> Fit {
        let psn = packet.psn;
        if packet.transport != self.config.transport || packet.operation == Operation::CongestionNotification
        {
            return Fit::Unrelated;
        }
        if packet.operation.is_response() {
            // The packet that was sent last, and the one that was before the requester went back.
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
