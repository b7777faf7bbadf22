//! Queue pairs with accounting of posted requests, bootstrap and registered memory: the basis of all protocols above.
//! This package contains no protocol itself.
//!
//! * [`bootstrap`]: the handshake that two processes exchange over any byte channel before their queue pairs connect.
//!   It maps bytes to bytes without I/O, and refuses invalid input.
//! * [`Plan`]: one choice per axis of the design space as plain data, and the table of named points.
//! * [`Region`]: registered memory that a peer or a NIC may write. It is never a `&[u8]`; all accesses are in one
//!   audited module.
//! * [`Connection`] (RC, UC) and [`Datagrams`] (UD): a [`QueuePair`] that keeps its regions alive, counts posted and
//!   completed requests, and is drained before memory is released. [`SharedReceives`] serve several of them.
//! * [`Backoff`]: exponential, with full jitter.

mod backoff;
mod batching;
pub mod bootstrap;
mod connection;
mod datagrams;
mod deferred_release;
mod nic;
mod plan;
mod queue_pair;
mod random;
mod region;
mod shared_receives;
mod work_request;

pub use backoff::Backoff;
pub use batching::{BatchConfig, BatchSizing, Batching};
pub use connection::Connection;
pub use datagrams::Datagrams;
pub use nic::Nic;
pub use plan::{
    ConnectionModel, Geometry, MemoryPolicy, PRESETS, Plan, PlanRefused, Preset, RequestPath, ResponsePath,
    Transport, WaitStrategy,
};
pub use queue_pair::{Completed, QpSizes, QueuePair, TOGETHER_MAX};
pub use random::{Entropy, SplitMix64, os_random};
pub use region::{PolledWord, Region, RemoteRegion};
pub use shared_receives::SharedReceives;
pub use work_request::{
    AddressId, Chain, LocalSlice, Operation, PostRefused, Receive, ReceiveChain, RegionId, Remote, SGES_MAX,
    Ticket, WorkRequest, is_receive, receive_tag, send_tag,
};
