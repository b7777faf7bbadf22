//! Names of files that represent an address and a port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::cm::message::PortSpace;

const fn short(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "tcp",
        PortSpace::Udp => "udp",
        PortSpace::Ib => "ib",
        PortSpace::IpOverIb => "ipoib",
    }
}

/// Converts an IPv4-mapped IPv6 address to the IPv4 address.
fn canonical(address: &SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(_), IpAddr::V4(v4)) => SocketAddr::new(v4.into(), address.port()),
        _ => *address,
    }
}

/// Returns the name of the file that represents an address and a port in a directory shared by containers.
#[must_use]
pub fn file_name(space: PortSpace, address: &SocketAddr) -> String {
    format!("cm-v1-{}-{}.sock", short(space), canonical(address))
}

/// Returns the common prefix of the names of one network: equal addresses of different networks are different.
#[must_use]
pub fn network_prefix(network: u64) -> String {
    format!("cm-v1-net{network}-")
}

/// Returns the name of an address and a port of one network.
#[must_use]
pub fn name(network: u64, space: PortSpace, address: &SocketAddr) -> String {
    format!("{}{}-{}.sock", network_prefix(network), short(space), canonical(address))
}

/// Returns the wildcard address of the same family, with the same port.
#[must_use]
pub fn wildcard(address: &SocketAddr) -> SocketAddr {
    let ip: IpAddr = match canonical(address).ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// Returns the names under which a listener accepts connections to an address: the address itself, the wildcard address
/// of its family, and the wildcard address of all families.
#[must_use]
pub fn listeners_at(network: u64, space: PortSpace, address: &SocketAddr) -> Vec<String> {
    let any_v6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    let mut names = [*address, wildcard(address), any_v6].map(|at| name(network, space, &at)).to_vec();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_of_a_network_a_space_an_address_and_a_port() {
        let own = name(7, PortSpace::Tcp, &address("127.0.0.1:7174"));
        assert_eq!(own, "cm-v1-net7-tcp-127.0.0.1:7174.sock");
        let mapped = name(7, PortSpace::Udp, &address("[::ffff:127.0.0.1]:1"));
        assert_eq!(mapped, "cm-v1-net7-udp-127.0.0.1:1.sock");
        assert_eq!(file_name(PortSpace::Udp, &address("[2001:db8::1]:5")), "cm-v1-udp-[2001:db8::1]:5.sock");
    }

    #[test]
    fn a_listener_at_every_address_is_found() {
        let v4 = listeners_at(7, PortSpace::Tcp, &address("192.0.2.7:5"));
        let expected = ["192.0.2.7:5", "0.0.0.0:5", "[::]:5"].map(|end| format!("cm-v1-net7-tcp-{end}.sock"));
        assert_eq!(v4, expected);
        let v6 = listeners_at(7, PortSpace::Tcp, &address("[2001:db8::1]:5"));
        assert_eq!(v6, ["[2001:db8::1]:5", "[::]:5"].map(|end| format!("cm-v1-net7-tcp-{end}.sock")));
    }
}
