//! Memory of a program that is larger than the machine's: kept on memory nodes (`farcall-memory`), a part of it
//! resident.
//!
//! * [`RemoteRegion`]: a range of memory, used through slices. Pages that are not resident come when they are touched.
//! * [`Handle`]: hints, snapshots, counters.
//! * [`Preflight`]: what works here.
//! * [`BareFaults`]: what measurements are taken beside.
//!
//! Page faults come through the kernel's userfaultfd; one thread, the pager, answers them. It sleeps while there are
//! none.
//!
//! 1. *A thread touches a page that is absent.* The pager reads the fault, and requests the page from the memory
//!    nodes. When the page has arrived, UFFDIO_COPY maps it and wakes the thread. A page that cannot be read is
//!    poisoned.
//! 2. *A page leaves* when local memory is short. UFFDIO_MOVE takes it to a staging place in one step, so that no
//!    write is lost (`staging.rs`). Only then the pager compares the checksum of its bytes with that of the stored
//!    page, and writes the page if they differ. It stays in its place until the place is needed, and returns from
//!    there without I/O.
//! 3. *A snapshot* protects all resident pages against writing. Each page is saved before it changes.
//!
//! The pager never touches the region: a page may be absent that it takes for resident, and it would wait for itself.
//! If it ends for any reason, the region is made inaccessible first, because absent pages would read as zeros.

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
