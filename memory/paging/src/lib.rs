//! Paging for unmodified programs: a program runs in a cgroup with a limit of resident memory, and what exceeds it is
//! swapped to memory nodes (RDMAbox, section 5: remote paging).
//!
//! ```text
//! program in a cgroup | kernel: swap | loop device | a file by FUSE | pager | memory nodes
//! ```
//!
//! Two processes look after it, outside of the cgroup, with their memory locked. The *keeper* ([`Paging`]) makes all of
//! the chain and the program, and holds /dev/fuse; the *pager* ([`serve`]) answers what the kernel asks. When the pager
//! is killed the next one takes over, by what the last one has kept in a file that the keeper holds: the program waits
//! meanwhile. If none can, the keeper ends the program before any request fails. When the keeper dies the pager undoes
//! everything; if both do, [`clean_up`] does.
//!
//! Linux has no swap area for one cgroup: pages of other programs may go there, too.

mod block_counters;
mod cgroup;
mod keeper;
mod kept;
mod loop_device;
mod own_memory;
mod pager;
mod pages;
mod place;
mod preflight;
mod program;
mod status;
mod swap;
mod undo;

pub use cgroup::{Cgroup, Hierarchy};
pub use keeper::{Ended, Paging, PagingError};
pub use pager::{PagerError, serve};
pub use place::{Config, Place, Ready, places};
pub use preflight::{Obstacle, preflight, priority_now};
pub use status::{Flow, Latency, Status, status};
pub use swap::{Area, areas, header as swap_header, swap_off, swap_on};
pub use undo::{Undone, clean_up, undo};
