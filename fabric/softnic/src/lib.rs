//! A software RNIC in user space: RDMA verbs between processes of one host, without kernel module, root or
//! configuration.
//!
//! One-sided operations run in the initiator: it maps the target's registered memory (a sealed memfd passed with the
//! grant) and copies. SENDs travel through one ring per queue pair and direction. A process that exits or stops at any
//! point can neither corrupt nor block another: there are no locks between processes, every ring has one writer,
//! revocation is fenced, and process exit is detected through a pidfd.
//!
//! A measurement between two processes of one host therefore measures inter-process communication, not a network.
//!
//! The crate has four directories. Imports go only in this direction: `verbs` → `roce` → `shm_transport` → `process`
//! (`tests/one_process/imports.rs` checks it).
//!
//! | directory | contents |
//! |---|---|
//! | `verbs` | the objects that programs hold: device, queue pairs, completion queues, regions, channels |
//! | `roce` | the RoCEv2 transport to other hosts: `farcall-wire` over UDP |
//! | `shm_transport` | the shared-memory transport between processes of one host: execution and completion of requests |
//! | `process` | this process and its memory, peer processes and their exit, forks |
//!
//! `process` notifies the other directories through its trait `TransportBackend`, for example that a process has exited.
//! Structures that are shared between processes are in the crate `farcall-shm`.

mod process;
mod roce;
mod shm_transport;
mod verbs;

#[doc(hidden)]
pub use farcall_shm::arm_store_hook;
#[doc(hidden)]
pub use process::addresses::check_remote_peer;
pub use process::addresses::{is_network_forced, is_of_this_host};
pub use process::rendezvous::{admit_group, configured_group, rendezvous_directory, socket_directory};
#[doc(hidden)]
pub use process::rendezvous::{check_peer, fuzz_frame, rendezvous_path};
pub use process::shared_remap::helper_turn;
pub use roce::{Management, ManagementDatagram};
pub use shm_transport::flight::FlightEvent;
pub use verbs::SoftNic;

/// Name of the provider.
pub const NAME: &str = "softnic";
