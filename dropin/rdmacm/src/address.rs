//! C socket addresses, and properties of addresses.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errno::{Errno, invalid, refused, system};

/// Reads a C socket address.
///
/// # Errors
/// Returns `EINVAL` for null, and `EAFNOSUPPORT` for other families than IP.
///
/// # Safety
/// `address` must be null, or point to a structure of the length that its family requires.
pub unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: contract of this function: `address` is null or has the length of its family, as `ip` requires.
    unsafe { ip(address) }.ok_or_else(|| match address.is_null() {
        true => invalid("the address is null"),
        false => refused(libc::EAFNOSUPPORT, format_args!("the address is neither AF_INET nor AF_INET6")),
    })
}

/// Reads a C socket address, if it is an IP address.
///
/// # Safety
/// The same as for [`read`].
pub unsafe fn ip(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: `address` is not null (checked above), so by the contract of this function it has the length of its
    // family. The reads are unaligned, because programs may place the structure at any address.
    unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Converts an address to C. Returns it with its length in bytes.
pub fn to_c(address: &SocketAddr) -> (sockaddr_storage, usize) {
    // SAFETY: plain numbers, for which zero is a value.
    let mut storage: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let len_bytes = match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` has size and alignment for every family.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(c) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: `sockaddr_storage` has size and alignment for every family.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(c) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, len_bytes)
}

/// Returns the unspecified address of the family of `address`.
pub fn any_like(address: &SocketAddr) -> SocketAddr {
    let ip: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// Returns an address in the form that GIDs have.
pub fn mapped(address: &IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => *v6,
    }
}

/// Returns whether an address belongs to this host, or is unspecified. With `net.ipv4.ip_nonlocal_bind`, sockets can
/// have other addresses as well.
pub fn is_local(address: &SocketAddr) -> bool {
    address.ip().is_unspecified() || farcall_softnic::is_of_this_host(mapped(&address.ip()))
}

/// Returns the destination for an address: the unspecified address stands for this host.
pub fn destination(to: SocketAddr) -> SocketAddr {
    if !to.ip().is_unspecified() {
        return to;
    }
    let ip: IpAddr = if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(ip, to.port())
}

/// Returns the address from which the kernel would reach `to`.
///
/// # Errors
/// Returns the kernel's error if there is no route.
pub fn source_towards(to: &SocketAddr) -> Result<IpAddr, Errno> {
    let way = || {
        let socket = UdpSocket::bind(any_like(to))?;
        // Nothing is sent, so any port will do.
        let mut somewhere = *to;
        somewhere.set_port(9);
        socket.connect(somewhere)?;
        Ok(socket.local_addr()?.ip())
    };
    way().map_err(system::<std::io::Error>(&format!("no way to {to}")))
}
