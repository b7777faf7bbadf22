//! Memory nodes, and address spaces over their memory.
//!
//! * [`Node`], [`MemoryServer`]: a node donates slabs of registered memory and grants them under leases. A lease that
//!   is not renewed is *fenced*: its keys are revoked, and accesses in progress end. Only then may a slab be granted
//!   again.
//! * [`Engine`], [`RemoteMemory`]: a client has an address space of pages over slabs of several nodes. Each page has
//!   replicas on different nodes, and the client records its checksum. Bytes from a node are checked, and wrong ones
//!   are repaired from another replica. If no replica has the page, the result is an error, never other bytes.
//! * [`wire`]: messages between clients and nodes. Data is transferred by one-sided READ and WRITE (`farcall-io`),
//!   in which the node takes no part.
//! * `membership` (feature `etcd`): nodes register in etcd, and clients find them there.
//!
//! Below [`MemoryServer`], [`RemoteMemory`] and `membership`, neither side owns a thread, clock or socket, so both run
//! unchanged in a simulator.

#![forbid(unsafe_code)]

mod client;
#[cfg(feature = "etcd")]
pub mod membership;
mod node;
pub mod wire;

pub use client::{
    ClientConfig, CompletedRequest, Counts, Engine, IoError, LinkStatus, MemoryEndpoint, MemoryNodeStatus,
    NodeCallError, OpenError, PAGE_BYTES, RemoteMemory, Request, SpaceStatus, SubmitError, Takeover,
    ViewHistory, VolumeConfig, WINDOW_BYTES, Work, call_node,
};
pub use node::{MemoryServer, Node, NodeConfig, ServeError};
