//! Whether packets go to the kernel together, in a train, or each alone.
//!
//! A network device that cuts a train into frames chooses their identifications in IPv4, which the invariant CRC covers.
//! Linux counts them up from the first, and packets are sealed for that; what every device does nobody knows. Another
//! Farcall takes any identification; of a foreign peer all packets of a train but the first would be lost, each time.

use farcall_verbs::QpType;

use super::path::Path;

/// So many packets of a pair go alone after some were lost.
const ALONE_PACKETS: u32 = 256;

/// Whether a packet may go in one message with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    Train,
    Alone,
}

impl Company {
    /// That of packets of which nobody would tell that they were lost.
    pub(super) fn unacknowledged(path: Path) -> Self {
        if path.has_identifications() { Self::Alone } else { Self::Train }
    }
}

/// What a connected queue pair has seen of its path.
pub(super) struct Caution {
    is_acknowledged: bool,
    alone_packets: u32,
}

impl Caution {
    pub(super) fn of(transport: QpType) -> Self {
        Self { is_acknowledged: transport == QpType::Rc, alone_packets: 0 }
    }

    /// How the next packet goes.
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

    /// Packets were lost, for whatever reason.
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
    fn after_a_loss_packets_go_alone_for_a_while_where_there_are_identifications() {
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
