//! Marks of congestion in IP headers.

/// The ECN field of an IP header: the lowest two bits of IPv4's service and of IPv6's class (RFC 3168, section 5). The
/// invariant CRC does not cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ecn {
    /// Not-ECT: nothing slows the sender down, so that the network drops rather than marks. Datagrams.
    NotCapable = 0,
    /// ECT(0): what our sockets send unless a message says otherwise.
    Capable = 2,
    /// CE: the packet met congestion.
    Congested = 3,
}

impl Ecn {
    /// Whether a field of service or class says that the packet met congestion.
    pub(super) const fn is_congested(service: u8) -> bool {
        service & 3 == Self::Congested as u8
    }
}
