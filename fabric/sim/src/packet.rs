//! Nodes, and packets in flight.

use farcall_wire::Packet;

/// A node's number.
pub(crate) type Node = u32;

/// The number of a node, in the order in which nodes were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A packet in flight, with the contents of the network's own headers and a copy of its payload.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) src: Node,
    pub(crate) dst: Node,
    pub(crate) src_qpn: u32,
    pub(crate) packet: Packet,
    pub(crate) payload: Vec<u8>,
    /// Whether it met congestion.
    pub(crate) is_marked: bool,
}

impl Frame {
    /// Returns source and destination as one number, for records.
    pub(crate) fn direction(&self) -> u64 {
        u64::from(self.src) << 32 | u64::from(self.dst)
    }
}
