//! Identification of hosts for limits per host.

use std::net::Ipv6Addr;

/// Returns the part of an address that identifies its host. An IPv6 host may own a 64-bit network with all of its
/// addresses.
#[must_use]
pub fn host_network(address: Ipv6Addr) -> u128 {
    let bits = u128::from(address);
    if address.to_ipv4_mapped().is_some() { bits } else { bits >> 64 << 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_network_of_ipv6_for_one_host() {
        let network = |text: &str| host_network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_ne!(network("::ffff:10.0.0.1"), network("::ffff:10.0.0.2"));
    }
}
