//! RDMA verbs in virtual time: many nodes in one thread, with faults, and always the same for the same seed.
//!
//! A [`World`] has nodes, a clock that counts nanoseconds, and one queue of events. Each node is a
//! [`farcall_verbs::Provider`]; a program that knows only the verbs' traits and the sans-IO
//! [`farcall_verbs::Endpoint`] runs here unchanged. Nothing depends on the machine: no thread, no system call, no
//! iteration over a hash map; random numbers come from one seed, and the [trace](World::trace_hash) of two runs is the
//! same to the bit. (Addresses of registered memory are the machine's, so they are no part of the trace.)
//!
//! What is simulated: queue pairs packet by packet, by the transport of [`farcall_wire`]; memory that changes between
//! steps only, in pieces; completion queues and channels; shared receive queues; [bootstrap pipes](Pipe); loss,
//! duplication, reordering, delay, partition, congestion; the death of programs and of nodes. Constants are in
//! [`Params`]; they model no particular hardware: no cost of an RNIC depends on the direction of an operation.
//!
//! | file | holds |
//! |---|---|
//! | `world`, `task` | the world's steps, and when each endpoint has its turn |
//! | `state`, `queue` | all objects, the clock, the queue of events |
//! | `network`, `packet` | nodes, packets between them, faults |
//! | `qp` | what the transport asks of a device, and posting |
//! | `memory`, `placement` | regions, their checks, how payload lands |
//! | `cq`, `srq`, `receive`, `channel`, `pipe` | the world's side of queues, channels and pipes |
//! | `device`, `socket`, `host`, `fabric` | what programs hold: verbs objects, pipes, clocks, behind one lock |
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
mod fabric;
mod host;
mod memory;
mod network;
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
mod trace;
mod world;

pub use host::{Host, HostClock};
pub use network::{Bottleneck, Faults};
pub use packet::NodeId;
pub use params::{Limits, Params};
pub use rng::{Purpose, Stream};
pub use socket::{Listener, Pipe};
pub use task::Waiting;
pub use trace::{Record, What};
pub use world::{Config, TaskId, World};
