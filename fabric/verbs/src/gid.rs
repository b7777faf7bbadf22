//! Global identifiers, and the choice of a port's GID as the address for its peers.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{Error, Result};

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand = 1,
    /// Ethernet (RoCE, software): addressed by GID.
    Ethernet = 2,
}

/// A global identifier: 128 bits, an IPv6 address in form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4-mapped GID that RoCEv2 uses for an address.
    pub fn from_ipv4(addr: Ipv4Addr) -> Self {
        Self(addr.to_ipv6_mapped().octets())
    }

    /// Returns the scope of the GID, interpreted as an IP address.
    pub fn scope(self) -> GidScope {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) if v4.is_link_local() || v4.is_loopback() => GidScope::Link,
            Some(_) => GidScope::RoutableV4,
            None if v6.is_unicast_link_local() || v6.is_loopback() => GidScope::Link,
            None => GidScope::RoutableV6,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Scope of a GID; greater is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GidScope {
    /// This link, or this host, only: no router forwards it.
    Link,
    /// A routable IPv6 address.
    RoutableV6,
    /// A routable IPv4 address.
    RoutableV4,
}

/// The protocol that an entry of a GID table sends with; greater is better on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand (and iWARP, which does not use it).
    InfiniBand,
    /// RoCE version 1: Ethernet frames of their own type, never routed.
    RoceV1,
    /// RoCE version 2: UDP port 4791.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCEv1",
            Self::RoceV2 => "RoCEv2",
        })
    }
}

/// An entry of a port's GID table (`ibv_gid_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Protocol of packets sent from this entry.
    pub gid_type: GidType,
    /// Network device of the entry, if known.
    pub netdev: Option<String>,
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Show addresses in their usual form, as users know them.
        let address = Ipv6Addr::from(self.gid.0);
        match address.to_ipv4_mapped() {
            Some(v4) => write!(f, "{}: {v4} {}", self.index, self.gid_type)?,
            None => write!(f, "{}: {address} {}", self.index, self.gid_type)?,
        }
        match &self.netdev {
            Some(netdev) => write!(f, " on {netdev}"),
            None => Ok(()),
        }
    }
}

/// The GID of a port that peers use as its address, with the reason for the choice and the alternatives.
///
/// A wrong GID is the most common cause of RoCE connections that fail with exceeded retries: both sides connect, but no
/// packet arrives. Therefore the choice is automatic, and it is reported to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The chosen entry.
    pub entry: GidEntry,
    /// Reason for the choice.
    pub reason: &'static str,
    /// The other entries, best first.
    pub others: Vec<GidEntry>,
}

impl GidChoice {
    /// Chooses from a port's table: on InfiniBand the first; on Ethernet RoCEv2 before v1, routable before link-local,
    /// IPv4 before IPv6, and the lowest index among equals.
    ///
    /// # Errors
    /// Returns an error if the table is empty.
    pub fn automatic(link_layer: LinkLayer, table: Vec<GidEntry>) -> Result<Self> {
        let mut table = table;
        // The sort is stable: equal entries keep their order in the table.
        if link_layer == LinkLayer::Ethernet {
            table.sort_by_key(|entry| std::cmp::Reverse((entry.gid_type, entry.gid.scope())));
        }
        let Some(entry) = table.first().cloned() else {
            return Err(Error::invalid(
                "choose GID",
                "the port has no GID; give its network device an address and set it up (ip address add, ip link set up)",
            ));
        };
        let reason = match (link_layer, entry.gid_type, entry.gid.scope()) {
            (LinkLayer::InfiniBand, ..) => "the port's own",
            (_, GidType::RoceV2, GidScope::Link) => {
                "no routable address: peers on the same link only; give the network device an IP address"
            }
            (_, GidType::RoceV2, _) => "RoCEv2 with a routable address",
            (_, GidType::RoceV1, _) => "there is no RoCEv2 entry: peers on the same Ethernet segment only",
            (_, GidType::InfiniBand, _) => "the port's own",
        };
        Ok(Self { entry, reason, others: table.split_off(1) })
    }

    /// Chooses the entry at `index`.
    ///
    /// # Errors
    /// Returns an error if that entry is empty; the message lists the entries in use.
    pub fn at(index: u32, table: Vec<GidEntry>) -> Result<Self> {
        let (mut chosen, others): (Vec<_>, Vec<_>) =
            table.into_iter().partition(|entry| entry.index == index);
        match chosen.pop() {
            Some(entry) => Ok(Self { entry, reason: "asked for", others }),
            None => {
                let others: Vec<String> = others.iter().map(GidEntry::to_string).collect();
                Err(Error::invalid(
                    "choose GID",
                    format!("there is no GID at index {index}; the table holds {}", others.join(", ")),
                ))
            }
        }
    }
}

impl fmt::Display for GidChoice {
    /// Writes one line: the choice, the reason, the alternatives.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {} ({})", self.entry, self.reason)?;
        for (i, other) in self.others.iter().enumerate() {
            write!(f, "{} {other}", if i == 0 { "; not taken:" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, address: &str, gid_type: GidType) -> GidEntry {
        let address: std::net::IpAddr = address.parse().unwrap();
        let gid = match address {
            std::net::IpAddr::V4(v4) => Gid::from_ipv4(v4),
            std::net::IpAddr::V6(v6) => Gid(v6.octets()),
        };
        GidEntry { index, gid, gid_type, netdev: Some("eth0".into()) }
    }

    /// The table of an ordinary adapter: each address twice, version 1 first.
    fn table() -> Vec<GidEntry> {
        use GidType::{RoceV1, RoceV2};
        vec![
            entry(0, "fe80::1", RoceV1),
            entry(1, "fe80::1", RoceV2),
            entry(2, "2001:db8::1", RoceV1),
            entry(3, "2001:db8::1", RoceV2),
            entry(4, "10.0.0.1", RoceV1),
            entry(5, "10.0.0.1", RoceV2),
            entry(6, "10.0.1.1", RoceV2),
        ]
    }

    #[test]
    fn a_gid_prints_in_full() {
        let gid = Gid::from_ipv4([10, 0, 0, 1].into());
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
    }

    #[test]
    fn chooses_a_routable_rocev2_gid_and_explains_the_choice() {
        let choice = GidChoice::automatic(LinkLayer::Ethernet, table()).unwrap();
        assert_eq!(choice.entry.index, 5);
        let order: Vec<u32> = choice.others.iter().map(|entry| entry.index).collect();
        assert_eq!(order, [6, 3, 1, 4, 2, 0]);
        let text = choice.to_string();
        assert!(
            text.starts_with("GID 5: 10.0.0.1 RoCEv2 on eth0 (RoCEv2 with a routable address)"),
            "{text}"
        );
        assert!(text.contains("not taken: 6: 10.0.1.1 RoCEv2 on eth0, 3: 2001:db8::1 RoCEv2"), "{text}");
    }

    #[test]
    fn reports_why_no_gid_is_routable() {
        let some =
            |count: usize| GidChoice::automatic(LinkLayer::Ethernet, table()[..count].to_vec()).unwrap();
        assert!(some(1).reason.contains("no RoCEv2"));
        assert!(some(2).reason.contains("no routable address"));
        assert_eq!(some(4).entry.index, 3);
    }

    #[test]
    fn chooses_the_first_gid_on_infiniband() {
        let table =
            vec![entry(0, "fe80::1", GidType::InfiniBand), entry(1, "2001:db8::1", GidType::InfiniBand)];
        assert_eq!(GidChoice::automatic(LinkLayer::InfiniBand, table).unwrap().entry.index, 0);
    }

    #[test]
    fn accepts_a_requested_gid_index_or_lists_the_table() {
        assert_eq!(GidChoice::at(2, table()).unwrap().entry.index, 2);
        let error = GidChoice::at(9, table()).unwrap_err().to_string();
        assert!(error.contains("index 9") && error.contains("5: 10.0.0.1 RoCEv2"), "{error}");
        assert!(GidChoice::automatic(LinkLayer::Ethernet, Vec::new()).is_err());
    }
}
