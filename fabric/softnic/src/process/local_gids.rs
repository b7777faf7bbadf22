//! GIDs for this host: for the processes that share this process's rendezvous sockets.

use std::net::{Ipv4Addr, Ipv6Addr};

use farcall_verbs::Gid;

/// Number of entries for this host.
pub(crate) const GID_TABLE_LEN: usize = 3;

/// Network device of these entries: the loopback device, because they reach only this host.
pub(crate) const NETDEV: &str = "lo";

/// Returns the entries: the GID of the rendezvous space, then GIDs that are IP addresses, which many programs search
/// for. An IPv4 address is at index 1, where an RNIC has its own, followed by an IPv6 address.
///
/// The IPv4 address identifies the space, too, so that two processes detect that they share none. All of 127/8 belongs
/// to the host; a number of the space is encoded in it.
pub(crate) fn gid_table(space: Gid) -> [Gid; GID_TABLE_LEN] {
    let [.., a, b, c] = space.0;
    // The first addresses are avoided, because they have a meaning for programs and resolvers.
    let v4 = Ipv4Addr::new(127, a | 0x80, b, c.clamp(1, 254));
    [space, Gid::from_ipv4(v4), Gid(Ipv6Addr::LOCALHOST.octets())]
}

/// Returns whether a GID can be an address of another host: neither that of a rendezvous space nor unspecified.
pub(crate) fn is_ip_address(gid: Gid) -> bool {
    gid.0[..SPACE.len()] != SPACE && !Ipv6Addr::from(gid.0).is_unspecified()
}

/// Prefix of the GIDs of rendezvous spaces.
pub(crate) const SPACE: [u8; 4] = *b"\xfd\x46\x43\x01";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_local_addresses_that_differ_between_spaces() {
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
