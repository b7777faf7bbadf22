//! Memory of a program that is larger than the machine's: kept on memory nodes (`farcall-memory`), a part of it resident.
//!
//! * [`RemoteRegion`]: a range of memory, used through slices. Pages that are not resident come when they are touched.
//! * [`Handle`]: hints, snapshots, counters.
//! * [`Preflight`]: what works here.
//! * [`BareFaults`]: what measurements are taken beside.
//!
//! Page faults come through the kernel's userfaultfd; one thread, the pager, answers them. It sleeps while there are
//! none.

mod bare;
mod order;
mod paged_memory;
mod pager;
mod preflight;
mod region;
mod snapshot;
mod staging;
mod status;
mod streams;
mod uffd;

pub use bare::BareFaults;
pub use preflight::Preflight;
pub use region::{Handle, RegionConfig, RegionError, RemoteRegion};
pub use snapshot::{SnapshotError, read_snapshot};
pub use status::{FaultTimes, RegionCounts, RegionStatus};
