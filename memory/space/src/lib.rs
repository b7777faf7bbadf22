//! Memory nodes, and the address space that clients make of them.
//!
//! * [`Node`], [`MemoryServer`]: a node donates slabs of registered memory, and grants them under leases. A lease that
//!   is not renewed is *fenced*: its keys are revoked, accesses under way end, and only then may a slab be granted
//!   again.
//! * [`Engine`], [`RemoteMemory`]: a client has an address space of pages over slabs of several nodes. Each page has
//!   replicas on different nodes, and the client keeps its checksum: what a node returns is checked, what is wrong is
//!   repaired from another replica, and what no replica has is an error, never other bytes.
//! * [`wire`]: what they say to each other. Data goes by one-sided READ and WRITE (`farcall-io`), in which the node
//!   has no part.
//! * `membership` (feature `etcd`): nodes register in etcd, and clients find them there.
//!
//! Both ends own no thread, clock or socket below [`MemoryServer`], [`RemoteMemory`] and `membership`: they run in a
//! simulator as they are.

mod client;
#[cfg(feature = "etcd")]
pub mod membership;
mod node;
pub mod wire;

pub use client::{
    CallFailed, ClientConfig, Counts, DonorStatus, Ended, Engine, IoError, LinkStatus, MarkHistory,
    MemoryEndpoint, OpenError, PAGE_BYTES, Refused, RemoteMemory, Request, SpaceStatus, Takeover,
    VolumeConfig, WINDOW_BYTES, Work, call_node,
};
pub use node::{MemoryServer, Node, NodeConfig, ServeError};
