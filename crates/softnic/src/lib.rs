//! A software RNIC in user space: RDMA verbs between processes of one host, without kernel module, root or
//! configuration.
//!
//! One-sided operations run in the initiator: it maps the target's registered memory (a sealed memfd handed over on
//! grant) and copies. SENDs travel through one ring per queue pair and direction. Nothing a process does while dying or
//! stopped can corrupt or block another: there are no locks between processes, every ring has one writer, revocation is
//! fenced, and death is seen through a pidfd.
//!
//! What it measures between two processes of one host is inter-process communication, not a network.
//!
//! | module | holds |
//! |---|---|
//! | `shared` | segments, and the only loads and stores of shared memory |
//! | `ring` | the message ring: one producer, one consumer |
//! | `readiness` | which queue pairs a completion queue must look at, and whether its owner sleeps |
//! | `credit` | how a request that waits for its target is not forgotten |
//! | `hazard` | fenced revocation |
//! | `fork`, `protection`, `maps` | what a forked child must not do; which memory may be registered; what is mapped |
//! | `in_place` | memory of the program, moved to where peers can map it |
//! | `rendezvous` | how processes find each other and hand over memory |
//! | `process`, `service`, `peer`, `regions` | what a process has once, its blocking thread, its peers, its memory |
//! | `events` | asynchronous events |
//! | `flight` | what flight recorders keep, and its words |
//! | `past_lives` | what ended while a stopped peer was inside of it |
//! | `datagram` | UD queue pairs |
//! | `qp`, `cq`, `srq`, `channel`, `mr`, `device` | the verbs objects |

#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod cq;
#[cfg(not(loom))]
mod datagram;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod events;
#[cfg(not(loom))]
mod flight;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod in_place;
#[cfg(not(loom))]
mod maps;
#[cfg(not(loom))]
mod mr;
#[cfg(not(loom))]
mod past_lives;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod prefetch;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
mod protection;
#[cfg(not(loom))]
mod qp;
#[cfg(not(loom))]
mod regions;
#[cfg(not(loom))]
mod rendezvous;
#[cfg(not(loom))]
mod service;
#[cfg(not(loom))]
mod srq;
#[cfg(not(loom))]
mod waited;

mod biased;
mod credit;
mod fence;
mod handoff;
mod hazard;
mod readiness;
mod ring;
mod shared;
mod sync;
mod wc_ring;

#[cfg(not(loom))]
pub use device::SoftNic;
#[cfg(not(loom))]
pub use flight::FlightEvent;
#[cfg(not(loom))]
pub use in_place::helper_turn;
#[cfg(not(loom))]
#[doc(hidden)]
pub use rendezvous::check_peer;
#[cfg(not(loom))]
#[doc(hidden)]
pub use rendezvous::fuzz_frame;
#[cfg(not(loom))]
pub use rendezvous::{admit_group, configured_group, socket_directory};
#[cfg(not(loom))]
#[doc(hidden)]
pub use shared::arm_store_hook;

/// The provider's name.
pub const NAME: &str = "softnic";

/// Permissions that let peers at memory.
#[cfg(not(loom))]
pub(crate) const REMOTE_ACCESS: farcall_verbs::Access = farcall_verbs::Access::REMOTE_WRITE
    .union(farcall_verbs::Access::REMOTE_READ)
    .union(farcall_verbs::Access::REMOTE_ATOMIC);
