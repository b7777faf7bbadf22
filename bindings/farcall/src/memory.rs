//! Memory of other processes as an address space: replicated, checked, repaired.
//!
//! - [`MemoryServer`] donates memory; `farcall memory serve` is one.
//! - [`RemoteMemory`] is an address space over several of them: reads and writes from any thread.
//! - [`RemoteRegion`] is memory of this process that is kept there: used through slices, a part of it resident.
//! - [`wire`] and [`call_node`] are for tools that look after nodes.

pub use farcall_memory::{
    CallFailed, ClientConfig, Counts, DonorStatus, IoError, LinkStatus, MemoryServer, NodeConfig, OpenError,
    PAGE_BYTES, RemoteMemory, ServeError, SpaceStatus, Takeover, VolumeConfig, call_node, wire,
};
pub use farcall_region::{
    BareFaults, FaultTimes, Handle, Preflight, RegionConfig, RegionCounts, RegionError, RegionStatus,
    RemoteRegion, SnapshotError,
};
