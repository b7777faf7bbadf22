//! Memory of other processes as an address space: replicated, checksummed, repaired.
//!
//! - [`MemoryServer`] provides memory; `farcall memory serve` runs one.
//! - [`RemoteMemory`] is an address space over several servers, for reads and writes from any thread.
//! - [`RemoteRegion`] is memory of this process that is stored there: accessed through slices, with a part of it
//!   resident.
//! - [`wire`] and [`call_node`] are for tools that manage nodes.

pub use farcall_memory::{
    ClientConfig, Counts, IoError, LinkStatus, MemoryNodeStatus, MemoryServer, NodeCallError, NodeConfig,
    OpenError, PAGE_BYTES, RemoteMemory, ServeError, SpaceStatus, Takeover, VolumeConfig, call_node, wire,
};
pub use farcall_region::{
    FaultTimes, Handle, LocalFaultBaseline, Preflight, RegionConfig, RegionCounts, RegionError, RegionStatus,
    RemoteRegion, SnapshotError,
};
