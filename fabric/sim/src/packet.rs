//! Nodes, and packets between them.

use farcall_wire::Packet;

/// A node's number.
pub(crate) type Node = u32;

/// A node's number, in the order in which nodes were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A packet under way, with what a network's own headers say and a copy of its payload.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) src: Node,
    pub(crate) dst: Node,
    pub(crate) src_qpn: u32,
    pub(crate) packet: Packet,
    pub(crate) payload: Vec<u8>,
    /// It met congestion.
    pub(crate) is_marked: bool,
}
