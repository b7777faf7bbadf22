//! The client: an address space of pages over slabs of several nodes.

mod buffers;
mod claim;
mod config;
mod control;
mod counters;
mod donor;
mod endpoint;
mod engine;
mod extent;
mod history;
mod keep;
mod notes;
mod pages;
mod remote;
mod space;
mod spill;

/// Pages of one piece of a long request: as many as one of 1 MiB has.
const PIECE_PAGES: usize = 256;

pub use config::{
    ClientConfig, Counts, DonorStatus, Ended, IoError, LinkStatus, OpenError, PAGE_BYTES, Refused, Request,
    SpaceStatus, Takeover, VolumeConfig, WINDOW_BYTES, Work,
};
pub use control::call_node;
pub use donor::CallFailed;
pub use endpoint::MemoryEndpoint;
pub use engine::Engine;
pub use history::MarkHistory;
pub use remote::RemoteMemory;
