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
const ALONE_PACKETS: u32 = 256;

/// Transmission mode of a packet: as part of a GSO batch, or singly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    Train,
    Alone,
}

impl Company {
    /// Returns the mode of unacknowledged packets (UC, UD). The sender cannot detect their loss, so it never batches
    /// them on IPv4 paths.
    pub(super) fn unacknowledged(path: Path) -> Self {
        if path.has_identifications() { Self::Alone } else { Self::Train }
    }
}

/// Per-queue-pair fallback from GSO batches to single packets.
pub(super) struct Caution {
    is_acknowledged: bool,
    alone_packets: u32,
}

impl Caution {
    pub(super) fn of(transport: QpType) -> Self {
        Self { is_acknowledged: transport == QpType::Rc, alone_packets: 0 }
    }

    /// Returns the mode of the next packet and counts the packet.
    pub(super) fn next(&mut self, path: Path) -> Company {
        if !self.is_acknowledged {
            return Company::unacknowledged(path);
        }
        match self.alone_packets.checked_sub(1) {
            None => Company::Train,
            Some(left) => {
                self.alone_packets = left;
                Company::Alone
            }
        }
    }

    /// Records a loss (ACK timeout or go-back). On an IPv4 path the next [`ALONE_PACKETS`] packets are sent singly,
    /// because the cause may be the identifications of a batch.
    pub(super) fn packets_were_lost(&mut self, path: Path) {
        if path.has_identifications() {
            self.alone_packets = ALONE_PACKETS;
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
        let mut caution = Caution::of(QpType::Rc);
        assert_eq!(caution.next(v4), Company::Train);
        caution.packets_were_lost(v6);
        assert_eq!(caution.next(v6), Company::Train);
        caution.packets_were_lost(v4);
        assert!((0..ALONE_PACKETS).all(|_| caution.next(v4) == Company::Alone));
        assert_eq!(caution.next(v4), Company::Train);
        let mut unacknowledged = Caution::of(QpType::Uc);
        assert_eq!([v4, v6].map(|path| unacknowledged.next(path)), [Company::Alone, Company::Train]);
    }
}
