//! A software RNIC in user space: RDMA verbs between processes of one host, without kernel module, root or
//! configuration.
//!
//! One-sided operations run in the initiator: it maps the target's registered memory (a sealed memfd handed over on
//! grant) and copies. SENDs travel through one ring per queue pair and direction. Nothing a process does while dying
//! or stopped can corrupt or block another: there are no locks between processes, every ring has one writer,
//! revocation is fenced, and death is seen through a pidfd.
//!
//! What it measures between two processes of one host is inter-process communication, not a network.
//!
//! Four folders, and imports go one way only: `verbs` → `net` → `host` → `life` (`tests/imports.rs` checks it).
//!
//! | folder | holds |
//! |---|---|
//! | `verbs` | the objects that programs hold: device, queue pairs, completion queues, regions, channels |
//! | `net` | the RoCEv2 way to other hosts: the transport of `farcall-wire` over UDP |
//! | `host` | the shared-memory way between processes of one host: how requests are executed and completed |
//! | `life` | this process and its memory, the processes that it meets, their deaths, forks |
//!
//! Where `life` must tell those above, it calls its trait `Way`: that a process has ended is one call. Structures
//! that are shared between processes are in the crate `farcall-shm`.

mod host;
mod life;
mod net;
mod verbs;

#[doc(hidden)]
pub use farcall_shm::arm_store_hook;
pub use host::flight::FlightEvent;
#[doc(hidden)]
pub use life::addresses::check_remote_peer;
pub use life::addresses::{is_network_forced, is_of_this_host};
pub use life::moved_memory::helper_turn;
pub use life::rendezvous::{admit_group, configured_group, rendezvous_directory, socket_directory};
#[doc(hidden)]
pub use life::rendezvous::{check_peer, fuzz_frame, rendezvous_path};
pub use net::{Management, ManagementDatagram};
pub use verbs::SoftNic;

/// The provider's name.
pub const NAME: &str = "softnic";
