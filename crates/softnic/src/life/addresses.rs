//! The addresses of this host's network devices, and which way leads to a GID.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Gid, Result};

/// Chooses the way.
const WAY_VARIABLE: &str = "FARCALL_WAY";

/// More addresses than this are left out of the GID table.
const ADDRESSES_MAX: usize = 8;

/// What the environment says of ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayChoice {
    /// Peers on this host by shared memory, others by RoCEv2.
    Auto,
    /// Shared memory alone.
    Host,
    /// RoCEv2 alone, also to this host.
    Net,
}

impl WayChoice {
    /// # Errors
    /// If the variable has another value.
    pub(crate) fn configured() -> Result<Self> {
        match trusted_variable(WAY_VARIABLE) {
            None => Ok(Self::Auto),
            Some(way) if way == "auto" => Ok(Self::Auto),
            Some(way) if way == "host" => Ok(Self::Host),
            Some(way) if way == "net" => Ok(Self::Net),
            Some(way) => {
                let what = format!(
                    "{WAY_VARIABLE}={way:?}: say auto, host (shared memory alone) or net (RoCEv2 alone)"
                );
                Err(Error::invalid("choose the way", what))
            }
        }
    }
}

/// An address of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAddress {
    pub(crate) gid: Gid,
    pub(crate) netdev: String,
}

/// The addresses of the devices that are up, in the system's order, IPv4 first. Loopback addresses count only where
/// everything goes by RoCEv2, and there is no other.
pub(crate) fn device_addresses(way: WayChoice) -> Vec<DeviceAddress> {
    let mut found = all_addresses();
    found.sort_by_key(|(address, _)| (address.is_loopback(), address.is_ipv6()));
    let may_be_loopback =
        way == WayChoice::Net && found.first().is_some_and(|(address, _)| address.is_loopback());
    let chosen = found.into_iter().filter(|(address, _)| may_be_loopback || !address.is_loopback());
    let entry = |(address, netdev): (IpAddr, String)| {
        let gid = match address {
            IpAddr::V4(address) => Gid::from_ipv4(address),
            IpAddr::V6(address) => Gid(address.octets()),
        };
        DeviceAddress { gid, netdev }
    };
    chosen.map(entry).take(ADDRESSES_MAX).collect()
}

fn all_addresses() -> Vec<(IpAddr, String)> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: fills a list, which is given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return found;
    }
    let mut next = first;
    // SAFETY: the list's entries live until it is given back.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: a name of the list, which ends with 0; and an address of the family that it names.
        let (netdev, address) = unsafe { (CStr::from_ptr(entry.ifa_name), address_of(entry.ifa_addr)) };
        let is_local = |v6: &Ipv6Addr| v6.is_unicast_link_local();
        if let Some(address) = address
            && !matches!(&address, IpAddr::V6(v6) if is_local(v6))
        {
            found.push((address, netdev.to_string_lossy().into_owned()));
        }
    }
    // SAFETY: as it was given to us; nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// The address must be as long as its family says.
unsafe fn address_of(name: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    unsafe {
        match libc::c_int::from((*name).sa_family) {
            libc::AF_INET => {
                let v4 = name.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let v6 = name.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_an_address() {
        let found = device_addresses(WayChoice::Net);
        assert!(!found.is_empty() && found.len() <= ADDRESSES_MAX, "{found:?}");
        let is_loopback = |entry: &DeviceAddress| Ipv6Addr::from(entry.gid.0).to_canonical().is_loopback();
        assert!(found.iter().all(is_loopback) || !found.iter().any(is_loopback), "{found:?}");
        assert!(!device_addresses(WayChoice::Auto).iter().any(is_loopback));
    }
}
