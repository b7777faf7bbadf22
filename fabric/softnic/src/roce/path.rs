//! Path of packets to another host, and the route header that it produces for a datagram.

use std::fmt;
use std::net::{Ipv6Addr, UdpSocket};

use farcall_verbs::{AhAttr, Error, Gid, ROUTE_HEADER_BYTES, Result, ipv4_route_header};
use farcall_wire::codec::UDP_PORT;
use rustix::io::Errno;

use crate::process::Process;
use crate::process::addresses::{require_device, require_peer};

/// Source address, one of this host, and destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
}

const UDP_HEADER_BYTES: usize = 8;
const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;

impl Path {
    /// Returns the path that an address vector describes. The source is the GID that it names if that reaches the
    /// destination, otherwise the address that the kernel chooses.
    ///
    /// # Errors
    /// Returns an error if there is no route to the address, or if the configuration forbids it.
    pub(crate) fn to(operation: &'static str, process: &Process, attr: &AhAttr) -> Result<Self> {
        let dst = Ipv6Addr::from(attr.dgid.0);
        require_peer(operation, dst)?;
        let own = process.table.get(usize::from(attr.sgid_index));
        let is_alike = |own: Ipv6Addr| own.to_ipv4_mapped().is_some() == dst.to_ipv4_mapped().is_some();
        let src = match Ipv6Addr::from(own.0) {
            src if is_alike(src) && process.is_address(src) && process.is_reached_by(own) => src,
            _ => source_towards(operation, dst)?,
        };
        if !process.is_address(src) {
            process.table.refresh();
        }
        require_device(operation, src, process.is_address(src))?;
        Ok(Self { src, dst })
    }

    /// Returns whether IP packets have an identification: those of IPv4 do.
    pub(super) fn is_ipv4(self) -> bool {
        self.dst.to_ipv4_mapped().is_some()
    }

    /// Returns the 40 bytes that precede a datagram received on this path; `len_bytes` is its UDP payload length.
    pub(super) fn route_header(self, len_bytes: usize) -> [u8; ROUTE_HEADER_BYTES] {
        let udp_bytes = UDP_HEADER_BYTES + len_bytes;
        if let (Some(src), Some(dst)) = (self.src.to_ipv4_mapped(), self.dst.to_ipv4_mapped()) {
            return ipv4_route_header(src, dst, udp_bytes);
        }
        let mut header = [0; ROUTE_HEADER_BYTES];
        header[0] = 6 << 4;
        header[4..6].copy_from_slice(&(udp_bytes as u16).to_be_bytes());
        (header[6], header[7]) = (UDP, HOP_LIMIT);
        header[8..24].copy_from_slice(&Gid(self.src.octets()).0);
        header[24..].copy_from_slice(&Gid(self.dst.octets()).0);
        header
    }
}

/// Returns the local address from which the kernel would send to `dst`.
///
/// # Errors
/// Returns an error if there is no route to it.
fn source_towards(operation: &'static str, dst: Ipv6Addr) -> Result<Ipv6Addr> {
    let ask = || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        // Connecting a UDP socket sends no packet.
        socket.connect((dst, UDP_PORT))?;
        socket.local_addr()
    };
    match ask() {
        Ok(std::net::SocketAddr::V6(name)) => Ok(*name.ip()),
        Ok(std::net::SocketAddr::V4(name)) => Ok(name.ip().to_ipv6_mapped()),
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::HOSTUNREACH);
            let to = dst.to_canonical();
            Err(Error::os(operation, format!("find a route to {to} (does ping reach it?)"), errno))
        }
    }
}

impl fmt::Display for Path {
    /// Writes both addresses: the local one, then that of the peer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.src.to_canonical(), self.dst.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::ReceivedRoute;

    use super::*;

    #[test]
    fn the_header_says_where_a_datagram_came_from_by_ipv4_and_ipv6() {
        for (src, dst) in [("::ffff:10.0.0.1", "::ffff:10.0.0.2"), ("fd00::1", "fd00::2")] {
            let path = Path { src: src.parse().unwrap(), dst: dst.parse().unwrap() };
            let header = path.route_header(100);
            let route = ReceivedRoute::of(&header);
            assert_eq!((route.source.0, route.destination.0), (path.src.octets(), path.dst.octets()));
            let is_v4 = path.src.to_ipv4_mapped().is_some();
            let (length_at, len_bytes) = if is_v4 { (22, 128_u16) } else { (4, 108) };
            assert_eq!(header[length_at..][..2], len_bytes.to_be_bytes());
        }
    }
}
