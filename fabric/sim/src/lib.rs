//! RDMA verbs in virtual time: many nodes in one thread, with faults, deterministic for each seed.
//!
//! A [`World`] has nodes, a clock that counts nanoseconds, and one event queue. Each node is a
//! [`farcall_verbs::Provider`]; a program that uses only the verbs' traits and the sans-IO [`farcall_verbs::Endpoint`]
//! runs here unchanged. Nothing depends on the machine: there is no thread, no system call and no iteration over a hash
//! map. All random numbers derive from one seed, and the [traces](World::trace_hash) of two runs are identical.
//! (Addresses of registered memory depend on the machine, so they are not part of the trace.)
//!
//! The simulation covers queue pairs packet by packet, with the transport of [`farcall_wire`]; memory that changes only
//! between steps, in chunks; completion queues and channels; shared receive queues; [bootstrap pipes](Pipe); loss,
//! duplication, reordering, delay, partition, congestion; crashes of programs and of nodes. Constants are in
//! [`Params`]; they model no particular hardware: no cost of an RNIC depends on the direction of an operation.
//!
//! | file | contents |
//! |---|---|
//! | `world`, `task` | the steps of the world, and the scheduling of endpoints |
//! | `state`, `devices` | all objects, and the effect of each event |
//! | `timeline`, `queue`, `trace` | the clock, the event queue, the records of what happened |
//! | `network`, `node`, `packet` | nodes, packets between them, faults |
//! | `qp` | the transport's interface to the device, and posting |
//! | `memory`, `placement` | regions, their checks, placement of payload |
//! | `cq`, `srq`, `receive`, `channel`, `pipe` | the device's state of queues, channels and pipes |
//! | `device`, `socket`, `host`, `fabric` | the programs' handles: verbs objects, pipes, clocks, behind one lock |
//! | [`check`] | checkers of completions, deliveries, memory and histories |
//!
//! ```
//! use farcall_sim::{Config, World};
//! use farcall_verbs::Provider;
//!
//! let mut world = World::new(Config::new(7));
//! let (a, b) = (world.add_node(), world.add_node());
//! assert_eq!(a.devices()?[0].name(), "sim0");
//! assert_eq!(b.devices()?[0].name(), "sim1");
//! # Ok::<(), farcall_verbs::Error>(())
//! ```

mod arena;
mod channel;
pub mod check;
mod cq;
mod device;
mod devices;
mod fabric;
mod host;
mod memory;
mod network;
mod node;
mod packet;
mod pages;
mod params;
mod pipe;
mod placement;
mod qp;
mod queue;
mod receive;
mod rng;
mod socket;
mod srq;
mod state;
mod task;
mod timeline;
mod trace;
mod world;

pub use host::{Host, HostClock};
pub use network::{Bottleneck, Faults};
pub use packet::NodeId;
pub use params::{Limits, Params};
pub use rng::{Purpose, Stream};
pub use socket::{Listener, Pipe};
pub use task::WaitStrategy;
pub use trace::{Record, RecordKind};
pub use world::{Config, TaskId, World};
