//! ECN marks in IP headers.

/// ECN field of an IP header: the lowest two bits of the IPv4 type of service and of the IPv6 traffic class (RFC 3168,
/// section 5). The invariant CRC does not cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ecn {
    /// Not-ECT: the sender has no rate control, so the network must drop and not mark. Used for datagrams.
    NotCapable = 0,
    /// ECT(0): the default of the port's sockets.
    Capable = 2,
    /// CE: the packet encountered congestion.
    Congested = 3,
}

impl Ecn {
    /// Returns whether a type of service or traffic class carries the CE mark.
    pub(super) const fn is_congested(service: u8) -> bool {
        service & 3 == Self::Congested as u8
    }
}
