//! Lock-free structures in memory that processes of one host share. They stay consistent if a process exits, stops or
//! forks at any instruction: no lock is held across processes, and every cache line has one writer.
//!
//! Each structure has a loom model in its file: `RUSTFLAGS='--cfg loom' cargo test --release -p farcall-shm --lib`.
//!
//! | module | contents |
//! |---|---|
//! | `segment`, `segment_file` | sealed memfds and their mappings; small segments that share one memfd |
//! | `free_memory`, `descriptor_limit` | free memory for allocation now or on first use; limit of file descriptors |
//! | `environment` | environment variables, which a privileged program does not trust |
//! | `runtime_dir` | a directory that only its user can write to |
//! | `memory` | the only loads and stores of shared memory |
//! | `address_space` | access to another process's memory outside of segments |
//! | `store_hook` | tests: a signal at the n-th store |
//! | [`ring`] | the message ring of a queue pair: one producer, one consumer |
//! | [`readiness`] | which queue pairs a completion queue must poll, and whether its application thread sleeps |
//! | [`credit_request`] | an initiator's request for credit announcements of its target |
//! | [`hazard`] | hazard pointers: fenced revocation of memory that other processes access |
//! | [`fence`] | asymmetric fences (membarrier) |
//! | `biased_lock` | a lock whose owner enters with two stores |
//! | `pending_lock` | a lock that its owner skips while nothing is pending |
//! | `mutex` | a mutex that is not poisoned |
//! | `sleep_flag` | whether a thread of this process sleeps |
//! | `delegation_word` | delegation of a sleeping thread's polling to another thread |
//! | `wc_ring` | completions from one thread to another |
//! | [`fork`] | objects that a forked child must not share with its parent |
//! | `wait_time`, `prefetch` | measurement of a waiting time; prefetching of memory |

pub mod credit_request;
pub mod fence;
pub mod fork;
pub mod hazard;
pub mod readiness;
pub mod ring;

mod address_space;
mod biased_lock;
mod delegation_word;
mod descriptor_limit;
mod environment;
mod free_memory;
mod memory;
#[cfg(loom)]
mod model;
mod mutex;
mod pending_lock;
mod prefetch;
mod runtime_dir;
mod segment;
mod segment_file;
mod short_slice;
mod sleep_flag;
mod store_hook;
mod sync;
mod wait_time;
mod wc_ring;

pub use address_space::{AddressSpace, MAX_RANGES, MemoryRange, TransferError};
pub use biased_lock::BiasedLock;
pub use delegation_word::{DelegationEnd, DelegationWord};
pub use descriptor_limit::raise_descriptor_limit;
pub use environment::trusted_variable;
pub use free_memory::{require_memory, total_memory_bytes};
#[cfg(not(loom))]
pub use memory::SharedMem;
pub use memory::{AtomicChange, SharedWord, copy_in_order, copy_out, copy_plain, update_word};
#[cfg(loom)]
pub use model::SharedMem;
pub use mutex::Mutex;
pub use pending_lock::{PendingGuard, PendingLock, PendingWork};
pub use prefetch::prefetch;
pub use runtime_dir::{private_memory_dir, private_runtime_dir};
pub use segment::{Mapping, Segment, sealed_memfd};
pub use segment_file::SegmentFile;
pub use short_slice::request_short_slice;
pub use sleep_flag::SleepFlag;
pub use store_hook::{arm_store_hook, before_store};
pub use wait_time::WaitTime;
pub use wc_ring::WcRing;
