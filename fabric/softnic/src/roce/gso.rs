//! Choice between passing packets to the kernel as one GSO batch (`UDP_SEGMENT`) and sending them singly.
//!
//! The invariant CRC covers the IPv4 identification. Segmentation of a batch, in the kernel or in the device, assigns
//! an identification to each frame. The CRCs are computed for the assignment that Linux makes: consecutive numbers from
//! that of the first frame. Offloading devices may assign other numbers. A Farcall receiver accepts any identification.
//! Another RoCEv2 implementation would drop all frames of such a batch except the first, and again on every
//! retransmission.

use farcall_verbs::QpType;

use super::path::Path;

/// Number of packets that a queue pair sends singly after a loss on an IPv4 path.
const SINGLE_AFTER_LOSS: u32 = 256;

/// Transmission mode of a packet: as part of a GSO batch, or singly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GsoMode {
    Batch,
    Single,
}

impl GsoMode {
    /// Returns the mode of unacknowledged packets (UC, UD). The sender cannot detect their loss, so it never batches
    /// them on IPv4 paths.
    pub(super) fn for_unacknowledged(path: Path) -> Self {
        if path.is_ipv4() { Self::Single } else { Self::Batch }
    }
}

/// Per-queue-pair fallback from GSO batches to single packets.
pub(super) struct GsoFallback {
    is_acknowledged: bool,
    single_packets_left: u32,
}

impl GsoFallback {
    pub(super) fn new(transport: QpType) -> Self {
        Self { is_acknowledged: transport == QpType::Rc, single_packets_left: 0 }
    }

    /// Returns the mode of the next packet and counts the packet.
    pub(super) fn next_mode(&mut self, path: Path) -> GsoMode {
        if !self.is_acknowledged {
            return GsoMode::for_unacknowledged(path);
        }
        match self.single_packets_left.checked_sub(1) {
            None => GsoMode::Batch,
            Some(left) => {
                self.single_packets_left = left;
                GsoMode::Single
            }
        }
    }

    /// Records a loss (ACK timeout or go-back). On an IPv4 path the next [`SINGLE_AFTER_LOSS`] packets are sent singly,
    /// because the cause may be the identifications of a batch.
    pub(super) fn on_loss(&mut self, path: Path) {
        if path.is_ipv4() {
            self.single_packets_left = SINGLE_AFTER_LOSS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_singly_after_a_loss_on_ipv4_only() {
        let path = |dst: &str| Path { src: dst.parse().unwrap(), dst: dst.parse().unwrap() };
        let (v4, v6) = (path("::ffff:10.0.0.1"), path("fd00::1"));
        let mut gso_fallback = GsoFallback::new(QpType::Rc);
        assert_eq!(gso_fallback.next_mode(v4), GsoMode::Batch);
        gso_fallback.on_loss(v6);
        assert_eq!(gso_fallback.next_mode(v6), GsoMode::Batch);
        gso_fallback.on_loss(v4);
        assert!((0..SINGLE_AFTER_LOSS).all(|_| gso_fallback.next_mode(v4) == GsoMode::Single));
        assert_eq!(gso_fallback.next_mode(v4), GsoMode::Batch);
        let mut unacknowledged = GsoFallback::new(QpType::Uc);
        assert_eq!([v4, v6].map(|path| unacknowledged.next_mode(path)), [GsoMode::Single, GsoMode::Batch]);
    }
}
