//! Determines from the kernel's routing tables whether packets for an address are delivered to this host
//! (rtnetlink(7)).
//!
//! An address need not be configured to belong to this host: all of 127/8 does, and so does every prefix with a route
//! of type `local`.

use std::net::{IpAddr, Ipv6Addr};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Protocol number 0.
const NETLINK_ROUTE: Option<Protocol> = None;

/// `RTM_GETROUTE`, and the type of its reply, `RTM_NEWROUTE`.
const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `RTA_DST`.
const DESTINATION: u16 = 1;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;
/// Lengths in bytes of `struct nlmsghdr`, `struct rtmsg` and `struct rtattr`.
const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
const ATTRIBUTE_BYTES: usize = 4;
/// Offset of `rtm_type` in a reply.
const AT_TYPE: usize = HEADER_BYTES + 7;

/// Returns whether an address belongs to this host; `None` if the kernel does not support the query.
pub(super) fn is_local(address: Ipv6Addr) -> Option<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, NETLINK_ROUTE).ok()?;
    net::send(&socket, &question(address.to_canonical()), SendFlags::DONTWAIT).ok()?;
    let mut answer = [0; 1024];
    loop {
        // The kernel queues the reply before `send` returns.
        match net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT) {
            Ok((len_bytes, _)) => return Some(is_local_route(&answer[..len_bytes])),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Returns whether a reply contains a local route. An error, such as a missing route, contains none.
fn is_local_route(answer: &[u8]) -> bool {
    answer.get(4..6) == Some(&NEW_ROUTE.to_ne_bytes()) && answer.get(AT_TYPE) == Some(&LOCAL)
}

fn question(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let attribute_bytes = ATTRIBUTE_BYTES + octets.len();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + ROUTE_BYTES + attribute_bytes);
    bytes.extend(((HEADER_BYTES + ROUTE_BYTES + attribute_bytes) as u32).to_ne_bytes());
    bytes.extend(GET_ROUTE.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    // Sequence number and port.
    bytes.extend([0; 8]);
    bytes.extend([family as u8, 8 * octets.len() as u8]);
    bytes.extend([0; ROUTE_BYTES - 2]);
    bytes.extend((attribute_bytes as u16).to_ne_bytes());
    bytes.extend(DESTINATION.to_ne_bytes());
    bytes.extend(octets);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_addresses_of_this_host_without_a_bind() {
        let address = |text: &str| match text.parse::<IpAddr>().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        for own in ["127.0.0.1", "127.0.0.5", "127.255.1.2"] {
            assert_eq!(is_local(address(own)), Some(true), "{own}");
        }
        // Addresses reserved for documentation, which no host has.
        for other in ["192.0.2.77", "2001:db8::77"] {
            assert_eq!(is_local(address(other)), Some(false), "{other}");
        }
    }

    #[test]
    fn takes_no_short_answer_for_a_local_route() {
        let mut answer = [0; AT_TYPE + 1];
        answer[4..6].copy_from_slice(&NEW_ROUTE.to_ne_bytes());
        answer[AT_TYPE] = LOCAL;
        assert!(is_local_route(&answer));
        assert!((0..answer.len()).all(|len_bytes| !is_local_route(&answer[..len_bytes])));
        answer[AT_TYPE] = LOCAL + 1;
        assert!(!is_local_route(&answer));
    }
}
