//! The port's GID table. All of it leads to this host: to the processes that share our rendezvous sockets.

use std::net::{Ipv4Addr, Ipv6Addr};

use farcall_verbs::Gid;

/// Entries that lead to this host.
pub(crate) const GID_TABLE_LEN: usize = 3;

/// The network device of the entries: it reaches this host alone, as the port does.
pub(crate) const NETDEV: &str = "lo";

/// The table: the GID of the rendezvous space, then GIDs that are IP addresses, which many programs look for: an IPv4
/// address at index 1, as an RNIC has its own there, and an IPv6 address.
///
/// The IPv4 address is the space's, too, so that two processes find out that they do not share one: all of 127/8 is the
/// host's own, and a number of the space is put into it.
pub(crate) fn gid_table(space: Gid) -> [Gid; GID_TABLE_LEN] {
    let [.., a, b, c] = space.0;
    // Not among the first addresses, which mean something to programs and resolvers.
    let v4 = Ipv4Addr::new(127, a | 0x80, b, c.clamp(1, 254));
    [space, Gid::from_ipv4(v4), Gid(Ipv6Addr::LOCALHOST.octets())]
}

/// Whether a GID can be another host's address: not one of a rendezvous space, and none that stays on a host.
pub(crate) fn is_ip_address(gid: Gid) -> bool {
    gid.0[..SPACE.len()] != SPACE && !Ipv6Addr::from(gid.0).is_unspecified()
}

/// How GIDs of rendezvous spaces begin.
pub(crate) const SPACE: [u8; 4] = *b"\xfd\x46\x43\x01";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_addresses_of_this_host_that_differ_between_spaces() {
        let [space, v4, v6] = gid_table(Gid([0xFF; 16]));
        assert_eq!(space, Gid([0xFF; 16]));
        assert_eq!(v4, Gid::from_ipv4([127, 255, 255, 254].into()));
        assert_eq!(v6.0, Ipv6Addr::LOCALHOST.octets());
        assert_eq!(gid_table(Gid([0; 16]))[1], Gid::from_ipv4([127, 128, 0, 1].into()));
        for gid in [v4, v6] {
            let address = Ipv6Addr::from(gid.0).to_canonical();
            assert!(std::net::UdpSocket::bind((address, 0)).is_ok() || address.is_ipv6(), "{address}");
        }
    }
}
