//! UDP port of a connected peer, which is part of its identity like its address.
//!
//! RoCEv2 leaves the source port to the sender. Farcall uses one of [`SOURCE_PORTS`] for a queue pair
//! ([`super::send_sockets`]), or [`UDP_PORT`], as earlier versions did for all. No other user of its host can send from
//! that port while it is in use. RNICs choose a port for each queue pair, too, and may change it. A queue pair
//! therefore learns the port from a packet with an expected sequence number. A sender that knows the address and the
//! number of the queue pair and guesses the sequence number may try as often as [`Guesses`] permits, and receives no
//! reply.

use farcall_verbs::QpType;
use farcall_wire::codec::UDP_PORT;
use farcall_wire::{Fit, Operation, Packet, TokenBucket};

use super::send_sockets::SOURCE_PORTS;

/// Maximum number of packets from other ports that are considered at once: the length of a burst when the first packet
/// of a peer is lost.
const GUESSES_MAX: u32 = 128;
/// Time after which one more packet is considered. Trying all 2^24 sequence numbers takes four and a half hours.
const GUESS_EVERY_NS: u64 = 1_000_000;

/// Allowance of packets from ports that are not known to be the peer's.
type Guesses = TokenBucket<GUESSES_MAX, GUESS_EVERY_NS>;

/// Kind of a packet, as far as the check of its sender depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Congestion notification, which has no sequence number.
    Notification,
    /// Packet of a message.
    Message { is_reliable: bool },
}

impl Kind {
    pub(super) fn of(packet: &Packet) -> Self {
        match packet.operation {
            Operation::CongestionNotification => Self::Notification,
            _ => Self::Message { is_reliable: packet.transport == QpType::Rc },
        }
    }
}

/// Returns whether a Farcall sends from the port, and no RNIC.
fn is_farcalls(port: u16) -> bool {
    port == UDP_PORT || SOURCE_PORTS.contains(&port)
}

/// Port of a connected peer.
pub(super) struct PeerPort {
    /// `None` before the first packet of the peer.
    port: Option<u16>,
    guesses: Guesses,
}

impl Default for PeerPort {
    fn default() -> Self {
        Self { port: None, guesses: Guesses::full(0) }
    }
}

impl PeerPort {
    /// Returns whether a packet from the peer's address, with a valid CRC, is the peer's according to its source port.
    /// `fit` returns how well its sequence number fits.
    #[inline]
    pub(super) fn admits(
        &mut self,
        src_port: u16,
        now_ns: u64,
        kind: Kind,
        fit: impl FnOnce() -> Fit,
    ) -> bool {
        self.port == Some(src_port) || self.learns(src_port, now_ns, kind, fit)
    }

    /// Accepts a port as the peer's if the packet from it fits.
    #[cold]
    fn learns(&mut self, src_port: u16, now_ns: u64, kind: Kind, fit: impl FnOnce() -> Fit) -> bool {
        let is_reliable = match kind {
            Kind::Message { is_reliable } => is_reliable,
            // RNICs may send notifications from a port other than that of the queue pair's data. Farcall does not.
            Kind::Notification => return self.port.is_some_and(|port| !is_farcalls(port)),
        };
        // The port of an unreliable queue pair does not change, because a packet after a loss cannot be distinguished
        // from a forged one. The port of a Farcall does not change in any case.
        let may_change = is_reliable && self.port.is_none_or(|port| !is_farcalls(port));
        if (self.port.is_some() && !may_change) || !self.guesses.take(now_ns) {
            return false;
        }
        let is_peers = match fit() {
            Fit::Next => true,
            Fit::Outstanding => self.port.is_none(),
            Fit::Unrelated => false,
        };
        if is_peers {
            self.port = Some(src_port);
        }
        is_peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELIABLE: Kind = Kind::Message { is_reliable: true };
    const UNRELIABLE: Kind = Kind::Message { is_reliable: false };

    fn is_admitted(peer: &mut PeerPort, src_port: u16, now_ns: u64, kind: Kind, fit: Fit) -> bool {
        peer.admits(src_port, now_ns, kind, || fit)
    }

    #[test]
    fn learns_the_port_of_the_first_packet_that_fits() {
        let mut peer = PeerPort::default();
        assert!(!is_admitted(&mut peer, 7, 0, RELIABLE, Fit::Unrelated));
        assert!(
            is_admitted(&mut peer, 8, 0, RELIABLE, Fit::Outstanding),
            "an answer, or it had not been asked"
        );
        assert!(
            is_admitted(&mut peer, 8, 0, RELIABLE, Fit::Unrelated),
            "its sequence numbers are the transport's"
        );
        assert!(!is_admitted(&mut peer, 7, 0, RELIABLE, Fit::Outstanding));
    }

    #[test]
    fn follows_a_changed_port_only_by_the_next_number() {
        let mut peer = PeerPort::default();
        assert!(is_admitted(&mut peer, 50_000, 0, RELIABLE, Fit::Next));
        assert!(
            !is_admitted(&mut peer, 7, 0, RELIABLE, Fit::Unrelated)
                && is_admitted(&mut peer, 7, 0, RELIABLE, Fit::Next)
        );
        assert!(!is_admitted(&mut peer, 50_000, 0, RELIABLE, Fit::Unrelated), "it has changed");
        for port in [UDP_PORT, SOURCE_PORTS.start, SOURCE_PORTS.end - 1] {
            let mut farcall = PeerPort::default();
            assert!(is_admitted(&mut farcall, port, 0, RELIABLE, Fit::Next));
            assert!(!is_admitted(&mut farcall, 50_000, 0, RELIABLE, Fit::Next), "its port does not change");
            assert!(is_admitted(&mut farcall, port, 0, RELIABLE, Fit::Unrelated));
        }
        let mut unreliable = PeerPort::default();
        assert!(is_admitted(&mut unreliable, 7, 0, UNRELIABLE, Fit::Outstanding));
        assert!(!is_admitted(&mut unreliable, 8, 0, UNRELIABLE, Fit::Next));
    }

    #[test]
    fn considers_a_bounded_number_of_guesses() {
        let mut peer = PeerPort::default();
        assert!(is_admitted(&mut peer, 8, 0, RELIABLE, Fit::Next));
        let guesses = (0..10_000_u32).map(|guess| {
            let fit = if guess == 9_999 { Fit::Next } else { Fit::Unrelated };
            is_admitted(&mut peer, 7, 0, RELIABLE, fit)
        });
        assert_eq!(guesses.filter(|is_taken| *is_taken).count(), 0, "the right one came too late");
        assert!(is_admitted(&mut peer, 8, 0, RELIABLE, Fit::Unrelated), "the peer is undisturbed");
        assert!(is_admitted(&mut peer, 7, GUESS_EVERY_NS, RELIABLE, Fit::Next));
    }

    #[test]
    fn takes_congestion_notifications_from_other_ports_of_cards() {
        for port in [UDP_PORT, SOURCE_PORTS.start, SOURCE_PORTS.end - 1] {
            let mut peer = PeerPort::default();
            assert!(!is_admitted(&mut peer, 7, 0, Kind::Notification, Fit::Next), "nothing was learnt");
            assert!(is_admitted(&mut peer, port, 0, RELIABLE, Fit::Next));
            assert!(is_admitted(&mut peer, port, 0, Kind::Notification, Fit::Unrelated));
            assert!(!is_admitted(&mut peer, 7, 0, Kind::Notification, Fit::Unrelated), "it is a Farcall");
        }
        let mut card = PeerPort::default();
        assert!(is_admitted(&mut card, 50_000, 0, RELIABLE, Fit::Next));
        assert!(is_admitted(&mut card, 7, 0, Kind::Notification, Fit::Unrelated));
    }
}
