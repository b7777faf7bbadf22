//! Datagrams from other hosts. The RoCEv2 transport receives them; they consume receives like datagrams from rings.

use farcall_verbs::ROUTE_HEADER_BYTES;

/// A datagram from another host.
#[derive(Clone, Copy)]
pub(crate) struct RemoteDatagram<'a> {
    /// Route header that precedes the payload in the receive buffer.
    pub(crate) header: &'a [u8; ROUTE_HEADER_BYTES],
    pub(crate) src_qpn: u32,
    pub(crate) imm_be: Option<u32>,
    pub(crate) payload: &'a [u8],
}
