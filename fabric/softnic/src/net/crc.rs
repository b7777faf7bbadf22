//! The invariant CRC of datagrams: of those of one path and one length, as in a train, what it begins with is the same.

use std::net::Ipv6Addr;

use farcall_wire::codec::UDP_PORT;
use farcall_wire::codec::icrc::{Covered, Flow};

use super::path::Path;

/// The CRC's view of a path.
pub(super) fn flow(path: Path, src_port: u16) -> Flow {
    let canonical = |address: Ipv6Addr| address.to_canonical();
    Flow { src: canonical(path.src), dst: canonical(path.dst), src_port, dst_port: UDP_PORT }
}

/// What the CRC of the last datagram began with.
#[derive(Default)]
pub(super) struct LastCovered {
    /// Its path, the port of its sender, and its length in bytes.
    of: Option<(Path, u16, usize)>,
    covered: Option<Covered>,
}

impl LastCovered {
    /// What the CRC of a datagram of `len_bytes` begins with.
    pub(super) fn of(&mut self, path: Path, src_port: u16, len_bytes: usize) -> &mut Covered {
        if self.of.replace((path, src_port, len_bytes)) != Some((path, src_port, len_bytes)) {
            self.covered = None;
        }
        self.covered.get_or_insert_with(|| Covered::new(&flow(path, src_port), len_bytes))
    }
}
