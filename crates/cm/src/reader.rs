//! Bounds-checked reading and writing of messages, little-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::message::Malformed;

/// What is left of a message.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of 24 bits: a queue pair's, or a packet's.
    pub fn u24(&mut self) -> Result<u32, Malformed> {
        let value = self.u32()?;
        if value >> 24 == 0 { Ok(value) } else { Err(Malformed::OutOfRange("a number of 24 bits")) }
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::OutOfRange("a flag")),
        }
    }

    pub fn gid(&mut self) -> Result<[u8; 16], Malformed> {
        self.array()
    }

    pub fn address(&mut self) -> Result<SocketAddr, Malformed> {
        let (family, port, ip, scope) = (self.u8()?, self.u16()?, self.array::<16>()?, self.u32()?);
        match family {
            4 => {
                let [a, b, c, d, rest @ ..] = ip;
                if rest != [0; 12] || scope != 0 {
                    return Err(Malformed::OutOfRange("an IPv4 address"));
                }
                Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port))
            }
            6 => Ok(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope))),
            _ => Err(Malformed::OutOfRange("an address family")),
        }
    }

    /// Bytes of a program, at most `max`.
    pub fn private_data(&mut self, max: usize) -> Result<Vec<u8>, Malformed> {
        let len = usize::from(self.u8()?);
        if len > max {
            return Err(Malformed::OutOfRange("private data"));
        }
        Ok(self.bytes(len)?.to_vec())
    }
}

/// Appends an address, as [`Reader::address`] reads it.
pub fn push_address(bytes: &mut Vec<u8>, address: &SocketAddr) {
    let (family, ip, scope) = match address {
        SocketAddr::V4(v4) => {
            let mut ip = [0; 16];
            ip[..4].copy_from_slice(&v4.ip().octets());
            (4, ip, 0)
        }
        SocketAddr::V6(v6) => (6, v6.ip().octets(), v6.scope_id()),
    };
    bytes.push(family);
    bytes.extend(address.port().to_le_bytes());
    bytes.extend(ip);
    bytes.extend(scope.to_le_bytes());
}

/// Appends bytes of a program, cut to `max`.
pub fn push_private_data(bytes: &mut Vec<u8>, data: &[u8], max: usize) {
    let data = &data[..data.len().min(max)];
    bytes.push(data.len() as u8);
    bytes.extend(data);
}
