//! Addresses of this host's network devices, and the choice of the transport to a GID.

use std::ffi::{CStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;

use farcall_shm::trusted_variable;
use farcall_verbs::{Error, Gid, Mtu, Result};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES};

use super::route_type;

/// Environment variable that selects the transport.
const TRANSPORT_VARIABLE: &str = "FARCALL_TRANSPORT";

/// Earlier name of [`TRANSPORT_VARIABLE`]; read only if that variable is not set.
const TRANSPORT_VARIABLE_ALIAS: &str = "FARCALL_WAY";

/// Environment variable with the network devices that may be used, separated by commas.
const DEVICES_VARIABLE: &str = "FARCALL_NET_DEVICES";

/// Environment variable with the addresses of hosts that may be peers, separated by commas.
const PEERS_VARIABLE: &str = "FARCALL_NET_PEERS";

/// Maximum number of addresses in the GID table.
pub(crate) const ADDRESSES_MAX: usize = 8;

/// Transport policy configured by the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportPolicy {
    /// Shared memory for peers on this host, RoCEv2 for others.
    Auto,
    /// Only shared memory.
    SharedMemory,
    /// Only RoCEv2, also for peers on this host.
    RoCE,
}

impl TransportPolicy {
    /// Reads the policy from the environment.
    ///
    /// # Errors
    /// Returns an error if the variable has an unknown value.
    pub(crate) fn configured() -> Result<Self> {
        Self::from_variables(trusted_variable)
    }

    /// Like [`TransportPolicy::configured`], with the given values of environment variables.
    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let names = [TRANSPORT_VARIABLE, TRANSPORT_VARIABLE_ALIAS];
        let configured = names.into_iter().find_map(|name| Some((name, variable(name)?)));
        let Some((name, value)) = configured else { return Ok(Self::Auto) };
        match value.to_str() {
            Some("auto") => Ok(Self::Auto),
            Some("shared-memory" | "host") => Ok(Self::SharedMemory),
            Some("roce" | "net") => Ok(Self::RoCE),
            _ => {
                let what = format!("{name}={value:?}: expected auto, shared-memory (only) or roce (only)");
                Err(Error::invalid("select the transport", what))
            }
        }
    }
}

/// Returns whether all connections must use RoCEv2, regardless of where the peers are.
pub fn is_network_forced() -> bool {
    matches!(TransportPolicy::configured(), Ok(TransportPolicy::RoCE))
}

/// An address of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAddress {
    pub(crate) gid: Gid,
    pub(crate) netdev: String,
}

/// Returns the addresses of devices that are up, and those of `known` that a device still has: a link that is down for
/// a while does not remove an address. The order is that of the system, with known addresses before others and IPv4
/// before IPv6. Loopback addresses are included only if RoCEv2 is forced and there is no other address.
pub(crate) fn device_addresses(policy: TransportPolicy, known: &[Gid]) -> Vec<DeviceAddress> {
    let mut found = all_addresses();
    if let Some(names) = trusted_variable(DEVICES_VARIABLE) {
        found.retain(|(_, netdev, _)| is_listed(&names.to_string_lossy(), netdev));
    }
    let is_known = |address: IpAddr| known.contains(&gid_of(address));
    found.retain(|(address, _, is_up)| *is_up || is_known(*address));
    found.sort_by_key(|(address, ..)| (address.is_loopback(), !is_known(*address), address.is_ipv6()));
    let may_be_loopback =
        policy == TransportPolicy::RoCE && found.first().is_some_and(|(address, ..)| address.is_loopback());
    let chosen = found.into_iter().filter(|(address, ..)| may_be_loopback || !address.is_loopback());
    let entry = |(address, netdev, _)| DeviceAddress { gid: gid_of(address), netdev };
    chosen.map(entry).take(ADDRESSES_MAX).collect()
}

fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid::from_ipv4(address),
        IpAddr::V6(address) => Gid(address.octets()),
    }
}

/// Returns whether packets for an address currently stay on this host.
pub fn is_of_this_host(address: Ipv6Addr) -> bool {
    let bind = || UdpSocket::bind((address.to_canonical(), 0)).is_ok();
    address.to_canonical().is_loopback() || route_type::is_local(address).unwrap_or_else(bind)
}

/// Returns the longest MTU whose packets pass through a network device without fragmentation; `None` if the system does
/// not report it.
pub(crate) fn whole_mtu_of(netdev: &str) -> Option<Mtu> {
    // Not read from /sys, which may belong to another network namespace.
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: all bytes zero are a valid `ifreq`, which is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = netdev.as_bytes();
    // The name must leave space for its terminating zero.
    let place = request.ifr_name.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ)?;
    place.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte as libc::c_char);
    // SAFETY: `SIOCGIFMTU` takes an `ifreq`. Its name is terminated by zero, and `request` is a local variable that
    // outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    // SAFETY: the call succeeded, so it has set this union field.
    (result == 0).then(|| whole_mtu(unsafe { request.ifr_ifru.ifru_mtu } as usize))
}

/// Returns the longest MTU whose packets fit into IP packets of `ip_bytes` bytes.
fn whole_mtu(ip_bytes: usize) -> Mtu {
    /// Length of the IPv6 and UDP headers and of the longest RoCEv2 headers in bytes.
    const HEADERS_BYTES: usize = 40 + 8 + HEADERS_BYTES_MAX + ICRC_BYTES;
    let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    let fitting = all.into_iter().find(|mtu| mtu.bytes() as usize + HEADERS_BYTES <= ip_bytes);
    fitting.unwrap_or(Mtu::Mtu256)
}

fn is_listed(list: &str, name: &str) -> bool {
    list.split(',').any(|listed| listed.trim() == name)
}

/// Checks that a host may be a peer.
///
/// # Errors
/// Returns an error if the host is not in the configured list, or if the list is malformed.
pub(crate) fn require_peer(operation: &'static str, peer: Ipv6Addr) -> Result<()> {
    match trusted_variable(PEERS_VARIABLE) {
        Some(list) => require_listed(operation, &list.to_string_lossy(), peer),
        None => Ok(()),
    }
}

/// Checks that connection management messages may arrive from an address over RoCEv2. Used by processes to which
/// another process, with another environment, forwards such messages.
///
/// # Errors
/// Returns an error if the address is one of this host and `FARCALL_TRANSPORT` does not force RoCEv2, if
/// `FARCALL_TRANSPORT` forbids other hosts, or if the address is not in the configured list.
pub fn check_remote_peer(peer: Ipv6Addr) -> Result<()> {
    const OP: &str = "check a remote peer";
    match TransportPolicy::configured()? {
        TransportPolicy::RoCE => {}
        TransportPolicy::SharedMemory => {
            return Err(Error::invalid(OP, "FARCALL_TRANSPORT=shared-memory forbids other hosts".to_owned()));
        }
        TransportPolicy::Auto if is_of_this_host(peer) => {
            let what = format!(
                "{} is an address of this host, whose processes use shared memory; FARCALL_TRANSPORT=roce forces \
                 RoCEv2",
                peer.to_canonical()
            );
            return Err(Error::invalid(OP, what));
        }
        TransportPolicy::Auto => {}
    }
    require_peer(OP, peer)
}

/// Returns the hosts that may be peers; `None` if all may.
///
/// # Errors
/// Returns an error if the list is malformed.
pub(crate) fn listed_peers(operation: &'static str) -> Result<Option<Vec<IpAddr>>> {
    trusted_variable(PEERS_VARIABLE).map(|list| parse_peers(operation, &list.to_string_lossy())).transpose()
}

/// Returns whether the devices that may be used are configured.
pub(crate) fn are_devices_named() -> bool {
    trusted_variable(DEVICES_VARIABLE).is_some()
}

fn parse_peers(operation: &'static str, list: &str) -> Result<Vec<IpAddr>> {
    let parse = |listed: &str| {
        let refuse = |_| Error::invalid(operation, format!("{PEERS_VARIABLE}: {listed:?} is no address"));
        listed.parse::<IpAddr>().map_err(refuse)
    };
    list.split(',').map(str::trim).filter(|listed| !listed.is_empty()).map(parse).collect()
}

fn require_listed(operation: &'static str, list: &str, peer: Ipv6Addr) -> Result<()> {
    if parse_peers(operation, list)?.contains(&peer.to_canonical()) {
        return Ok(());
    }
    let what = format!("{} is no peer that {PEERS_VARIABLE} lists ({list})", peer.to_canonical());
    Err(Error::invalid(operation, what))
}

/// Checks that the local address towards a peer may be used.
///
/// # Errors
/// Returns an error if devices are configured and the address belongs to none of them.
pub(crate) fn require_device(operation: &'static str, source: Ipv6Addr, is_named: bool) -> Result<()> {
    if is_named || !are_devices_named() {
        return Ok(());
    }
    let what = format!(
        "the path to the peer uses {}, which belongs to no device in {DEVICES_VARIABLE}",
        source.to_canonical()
    );
    Err(Error::invalid(operation, what))
}

/// Returns each address with its device, and whether the device is up.
fn all_addresses() -> Vec<(IpAddr, String, bool)> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call stores a list in `first`, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return found;
    }
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list, which is freed only after the loop.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: `ifa_name` is a string of the list, terminated by zero. `ifa_addr` is not null and has the length of
        // its family.
        let (netdev, address) = unsafe { (CStr::from_ptr(entry.ifa_name), address_of(entry.ifa_addr)) };
        let is_local = |v6: &Ipv6Addr| v6.is_unicast_link_local();
        if let Some(address) = address
            && !matches!(&address, IpAddr::V6(v6) if is_local(v6))
        {
            found.push((address, netdev.to_string_lossy().into_owned(), is_up));
        }
    }
    // SAFETY: `first` is the list that `getifaddrs` returned, and no reference to it remains.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `name` must be valid for the length of its address family.
unsafe fn address_of(name: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by the contract of this function `name` is valid for the structure of its family.
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
    fn packets_of_the_mtu_fit_into_one_of_ip() {
        let expected = [
            (65_536, 4_096),
            (9_000, 4_096),
            (4_200, 4_096),
            (4_100, 2_048),
            (1_500, 1_024),
            (1_280, 1_024),
            (576, 256),
            (0, 256),
        ];
        for (ip_bytes, mtu_bytes) in expected {
            assert_eq!(whole_mtu(ip_bytes).bytes(), mtu_bytes, "{ip_bytes}");
        }
        assert_eq!(whole_mtu_of("lo"), Some(Mtu::Mtu4096));
        assert_eq!(whole_mtu_of("no device"), None);
        assert_eq!(whole_mtu_of("a name that no device can have"), None);
    }

    #[test]
    fn only_listed_peers_and_devices_are_let_in() {
        let peer = |text: &str| match text.parse::<IpAddr>().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let list = "10.0.0.7, fd00::7";
        assert!(require_listed("test", list, peer("10.0.0.7")).is_ok());
        assert!(require_listed("test", list, peer("fd00::7")).is_ok());
        assert!(require_listed("test", list, peer("10.0.0.70")).is_err());
        assert!(require_listed("test", "", peer("10.0.0.7")).is_err(), "an empty list lists nobody");
        assert!(require_listed("test", "10.0.0.7,host", peer("10.0.0.7")).is_err());
        assert!(is_listed("eth0,ib0", "ib0") && !is_listed("eth0,ib0", "ib"));
    }

    #[test]
    fn reads_the_policy_from_either_variable() {
        let policy = |transport: Option<&str>, way: Option<&str>| {
            let value = |name: &str| if name == TRANSPORT_VARIABLE { transport } else { way };
            TransportPolicy::from_variables(|name| value(name).map(OsString::from))
        };
        assert_eq!(policy(None, None).unwrap(), TransportPolicy::Auto);
        let values = [
            ("auto", TransportPolicy::Auto),
            ("shared-memory", TransportPolicy::SharedMemory),
            ("host", TransportPolicy::SharedMemory),
            ("roce", TransportPolicy::RoCE),
            ("net", TransportPolicy::RoCE),
        ];
        for (value, expected) in values {
            assert_eq!(policy(Some(value), None).unwrap(), expected, "{value}");
            assert_eq!(policy(None, Some(value)).unwrap(), expected, "{value}");
            assert_eq!(policy(Some(value), Some("unknown")).unwrap(), expected, "the alias is not read");
        }
        let refused = |transport, way| policy(transport, way).unwrap_err().to_string();
        assert!(refused(Some("RoCE"), Some("net")).contains("FARCALL_TRANSPORT=\"RoCE\""));
        assert!(refused(None, Some("tcp")).contains("FARCALL_WAY=\"tcp\""));
    }

    #[test]
    fn this_host_has_an_address() {
        let found = device_addresses(TransportPolicy::RoCE, &[]);
        assert!(!found.is_empty() && found.len() <= ADDRESSES_MAX, "{found:?}");
        let is_loopback = |entry: &DeviceAddress| Ipv6Addr::from(entry.gid.0).to_canonical().is_loopback();
        assert!(found.iter().all(is_loopback) || !found.iter().any(is_loopback), "{found:?}");
        assert!(!device_addresses(TransportPolicy::Auto, &[]).iter().any(is_loopback));
    }
}
