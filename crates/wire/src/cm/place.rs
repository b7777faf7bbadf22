//! Names of sockets that stand for an address and a port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::cm::message::PortSpace;

fn prefix(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "farcall/cm/v1/tcp/",
        PortSpace::Udp => "farcall/cm/v1/udp/",
        PortSpace::Ib => "farcall/cm/v1/ib/",
        PortSpace::IpOverIb => "farcall/cm/v1/ipoib/",
    }
}

/// The state of a socket that has, or may have, a port: bound or listening (`SS_UNCONNECTED`).
const UNCONNECTED: &str = "01";

/// An IPv4-mapped IPv6 address becomes the IPv4 address.
fn canonical(address: &SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(_), IpAddr::V4(v4)) => SocketAddr::new(v4.into(), address.port()),
        _ => *address,
    }
}

/// The name of an address and a port, short enough for a socket.
#[must_use]
pub fn name(space: PortSpace, address: &SocketAddr) -> String {
    format!("{}{}", prefix(space), canonical(address))
}

/// The name of a file that stands for an address and a port in a folder that containers share.
#[must_use]
pub fn file_name(space: PortSpace, address: &SocketAddr) -> String {
    let space = prefix(space).trim_start_matches("farcall/cm/v1/").trim_end_matches('/');
    format!("cm-v1-{space}-{}.sock", canonical(address))
}

/// The names under which a listener accepts connections to an address: its own, every address of its family, every
/// address.
#[must_use]
pub fn listeners_at(space: PortSpace, address: &SocketAddr) -> Vec<String> {
    let port = address.port();
    let any_v6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let mut names = vec![name(space, address)];
    if canonical(address).is_ipv4() {
        names.push(name(space, &SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)));
    }
    names.push(name(space, &any_v6));
    names
}

/// Whether a port cannot be given to an address because a socket has it for every address of the family, or because the
/// address is every address and a socket has the port for one. `sockets` is the kernel's list, `/proc/net/unix`.
#[must_use]
pub fn is_covered(sockets: &str, space: PortSpace, address: &SocketAddr) -> bool {
    let address = canonical(address);
    sockets
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            // Accepted connections carry the name of their listener; they take no port.
            let is_free = fields.nth(5)? == UNCONNECTED;
            fields.nth(1).filter(|_| is_free)?.strip_prefix('@')?.strip_prefix(prefix(space))
        })
        .filter_map(|taken| taken.parse::<SocketAddr>().ok())
        .filter(|taken| taken.port() == address.port() && taken.is_ipv4() == address.is_ipv4())
        .any(|taken| address.ip().is_unspecified() || taken.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_of_a_space_an_address_and_a_port_and_fit_a_socket() {
        assert_eq!(name(PortSpace::Tcp, &address("127.0.0.1:7174")), "farcall/cm/v1/tcp/127.0.0.1:7174");
        assert_eq!(name(PortSpace::Udp, &address("[::ffff:127.0.0.1]:1")), "farcall/cm/v1/udp/127.0.0.1:1");
        assert_eq!(file_name(PortSpace::Udp, &address("[2001:db8::1]:5")), "cm-v1-udp-[2001:db8::1]:5.sock");
        let longest = address("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535");
        assert!(name(PortSpace::IpOverIb, &longest).len() < 107);
    }

    #[test]
    fn a_listener_at_every_address_is_found() {
        let v4 = listeners_at(PortSpace::Tcp, &address("192.0.2.7:5"));
        let expected = ["192.0.2.7:5", "0.0.0.0:5", "[::]:5"].map(|end| format!("farcall/cm/v1/tcp/{end}"));
        assert_eq!(v4, expected);
        let v6 = listeners_at(PortSpace::Tcp, &address("[2001:db8::1]:5"));
        assert_eq!(v6, ["[2001:db8::1]:5", "[::]:5"].map(|end| format!("farcall/cm/v1/tcp/{end}")));
    }

    #[test]
    fn ports_of_every_address_and_of_one_are_in_each_others_way() {
        let line =
            |name: &str| format!("0000000000000000: 00000002 00000000 00010000 0005 01 4242 @{name}\n");
        let sockets = [
            line("farcall/cm/v1/tcp/0.0.0.0:1"),
            line("farcall/cm/v1/tcp/127.0.0.1:2"),
            line("farcall/cm/v1/tcp/gibberish"),
            line("farcall/cm/v1/tcp/0.0.0.0:3").replace(" 01 4242", " 03 4242"),
            "0000000000000000: 00000002 00000000 00010000 0001 01 4243\n".into(),
        ]
        .concat();
        let covered = |space, text: &str| is_covered(&sockets, space, &address(text));
        assert!(covered(PortSpace::Tcp, "127.0.0.1:1") && covered(PortSpace::Tcp, "0.0.0.0:2"));
        assert!(covered(PortSpace::Tcp, "[::ffff:127.0.0.1]:1"));
        assert!(!covered(PortSpace::Tcp, "127.0.0.2:2"), "another address");
        assert!(!covered(PortSpace::Tcp, "127.0.0.1:3") && !covered(PortSpace::Tcp, "[::]:2"));
        assert!(!covered(PortSpace::Udp, "127.0.0.1:1"), "another space");
    }
}
