//! Invariant CRC of datagrams. Its initial part is equal for all datagrams of one path and one length, as in a GSO
//! batch.

use std::net::Ipv6Addr;

use farcall_wire::codec::UDP_PORT;
use farcall_wire::codec::icrc::{Flow, IcrcInput};

use super::path::Path;

/// Returns the fields of a path that the CRC covers.
pub(super) fn flow(path: Path, src_port: u16) -> Flow {
    let canonical = |address: Ipv6Addr| address.to_canonical();
    Flow { src: canonical(path.src), dst: canonical(path.dst), src_port, dst_port: UDP_PORT }
}

/// Initial part of the CRC of the last datagram.
#[derive(Default)]
pub(super) struct LastCovered {
    /// Path, source port and length in bytes.
    of: Option<(Path, u16, usize)>,
    covered: Option<IcrcInput>,
}

impl LastCovered {
    /// Returns the initial part of the CRC of a datagram of `len_bytes` bytes.
    pub(super) fn of(&mut self, path: Path, src_port: u16, len_bytes: usize) -> &mut IcrcInput {
        if self.of.replace((path, src_port, len_bytes)) != Some((path, src_port, len_bytes)) {
            self.covered = None;
        }
        self.covered.get_or_insert_with(|| IcrcInput::new(&flow(path, src_port), len_bytes))
    }
}
