//! Memory of a program that is larger than that of the machine: its pages are stored on memory nodes
//! (`farcall-memory`), and a part of them is resident.
//!
//! * [`RemoteRegion`]: a range of memory, used through slices. Pages that are not resident are fetched at their first
//!   access.
//! * [`Handle`]: hints, snapshots, counters.
//! * [`Preflight`]: tests which features work on this machine.
//! * [`LocalFaultBaseline`]: the local baseline for measurements.
//!
//! Page faults are reported through the kernel's userfaultfd and resolved by one thread, the pager. It sleeps while
//! there are none.
//!
//! 1. *A thread touches a page that is absent.* The pager reads the fault, and requests the page from the memory
//!    nodes. When the page has arrived, UFFDIO_COPY maps it and wakes the thread. A page that cannot be read is
//!    poisoned.
//! 2. *A page is evicted* when local memory is short. UFFDIO_MOVE moves it to a staging slot in one step, so that no
//!    write is lost (`staging.rs`). Only then the pager compares the checksum of its bytes with that of the stored
//!    page, and writes the page if they differ. It stays in its slot until the slot is needed, and returns from there
//!    without I/O.
//! 3. *A snapshot* protects all resident pages against writing. Each page is saved before it changes.
//!
//! The pager never accesses the region: the program may have removed a page that the pager considers resident, and the
//! pager would then wait for itself. If the pager ends for any reason, the region is made inaccessible first, because
//! absent pages would read as zeros.

mod local_baseline;
mod paged_memory;
mod pager;
mod preflight;
mod region;
mod resident_fifo;
mod sequential_detector;
mod snapshot;
mod staging;
mod status;
mod uffd;

pub use local_baseline::LocalFaultBaseline;
pub use preflight::Preflight;
pub use region::{Handle, RegionConfig, RegionError, RemoteRegion};
pub use snapshot::{SnapshotError, read_snapshot};
pub use status::{FaultTimes, RegionCounts, RegionStatus};
