//! IP addresses in messages (annex A11): the listener's port is part of the service ID; the requester's port and both
//! addresses precede the program's private data.

use std::net::{IpAddr, SocketAddr};

use crate::cm::fields::Body;
use crate::cm::mad::Malformed;
use crate::cm::message::{IpRoute, PortSpace};

/// Length in bytes of the addresses within the private data: version, IP version, the requester's port, both addresses.
pub(super) const HEADER_BYTES: usize = 36;

const IP_VERSION_AT: usize = 1;
const PORT_AT: usize = 2;
const FROM_AT: usize = 4;
const TO_AT: usize = 20;

impl IpRoute {
    /// Returns the service ID: a port of a port space.
    #[must_use]
    pub fn service_id(&self) -> u64 {
        u64::from(self.port_space as u16) << 16 | u64::from(self.to.port())
    }

    /// Writes the header of the private data, which begins at `at`.
    pub(super) fn put(&self, body: &mut Body, at: usize) {
        // Addresses of different families are written as IPv6.
        let is_v4 = self.from.is_ipv4() && self.to.is_ipv4();
        body.put_bits(at + IP_VERSION_AT, 4, 4, if is_v4 { 4 } else { 6 });
        body.put(at + PORT_AT, &self.from.port().to_be_bytes());
        for (address, at) in [(self.from, at + FROM_AT), (self.to, at + TO_AT)] {
            match address.ip() {
                IpAddr::V4(v4) if is_v4 => body.put(at + 12, &v4.octets()),
                IpAddr::V4(v4) => body.put(at, &v4.to_ipv6_mapped().octets()),
                IpAddr::V6(v6) => body.put(at, &v6.octets()),
            }
        }
    }

    /// Reads the header of the private data, which begins at `at`.
    pub(super) fn get(service_id: u64, body: &Body, at: usize) -> Result<Self, Malformed> {
        let port_space = u32::try_from(service_id >> 16).ok().and_then(PortSpace::of);
        let port_space = port_space.ok_or(Malformed::Service(service_id))?;
        if body.0[at] != 0 {
            return Err(Malformed::OutOfRange("the version of the addresses"));
        }
        let is_v4 = match body.bits(at + IP_VERSION_AT, 4, 4) {
            4 => true,
            6 => false,
            _ => return Err(Malformed::OutOfRange("the IP version")),
        };
        let ip = |at: usize| -> IpAddr {
            if is_v4 { body.bytes::<4>(at + 12).into() } else { body.bytes::<16>(at).into() }
        };
        let from = SocketAddr::new(ip(at + FROM_AT), body.u16(at + PORT_AT));
        let to = SocketAddr::new(ip(at + TO_AT), service_id as u16);
        Ok(Self { port_space, from, to })
    }
}
