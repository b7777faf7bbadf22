//! Paging for unmodified programs: a program runs in a cgroup with a limit of resident memory, and what exceeds it is
//! swapped to memory nodes (RDMAbox, section 5: remote paging).
//!
//! ```text
//! program in a cgroup | kernel: swap | loop device | a file by FUSE | pager | memory nodes
//! ```
//!
//! Two processes outside the cgroup, with locked memory, serve it. The *supervisor* ([`PagingRun`]) creates all of the
//! chain and the program, and holds /dev/fuse; the *pager* ([`serve`]) serves the requests of the kernel. If the pager
//! is killed, the next one restores its state from a resume file that the supervisor holds, and the program waits in
//! the meantime. If no pager can be started, the supervisor kills the program before any request fails. If the
//! supervisor exits, the pager releases all resources; if both do, [`clean_up`] does.
//!
//! Linux cannot restrict a swap area to one cgroup: pages of other programs may be swapped to it, too.

mod block_counters;
mod cgroup;
mod loop_device;
mod pager;
mod pager_memory;
mod pages;
mod preflight;
mod program;
mod resume_file;
mod run_paths;
mod status;
mod supervisor;
mod swap;
mod undo;

pub use cgroup::{Cgroup, Hierarchy};
pub use pager::{PagerError, serve};
pub use preflight::{Obstacle, preflight, priority_now};
pub use run_paths::{Config, Ready, RunPaths, all_runs};
pub use status::{Flow, Latency, Status, status};
pub use supervisor::{PagingError, PagingRun, RunOutcome};
pub use swap::{Area, areas, header as swap_header, swap_off, swap_on};
pub use undo::{Undone, clean_up, undo};
