//! Peers, bootstrap and registered memory: what every protocol above needs, and no protocol itself.
//!
//! * [`bootstrap`]: the handshake that two processes exchange over any byte channel before their queue pairs meet. Bytes
//!   in, bytes out; garbage is refused, never believed.
//! * [`Plan`]: one choice per axis of the design space as plain data, and the table of named points.
//! * [`Region`]: registered memory that a peer or a NIC may write. It is never a `&[u8]`; all accesses go through one
//!   audited module.
//! * [`Peer`]: a connected queue pair that keeps the regions it works on alive, accounts for its send queue and is
//!   drained before memory is released.
//! * [`BufferPool`]: registered buffers handed out as guards.
//! * [`Backoff`]: exponential, with full jitter.

mod backoff;
pub mod bootstrap;
mod mem;
mod nic;
mod peer;
mod plan;
mod pool;
mod random;

pub use backoff::Backoff;
pub use mem::{Region, RemoteRegion, Watch};
pub use nic::Nic;
pub use peer::{Completed, Peer, PeerConfig, PeerError, PeerState, Piece, RegionId, Remote, Ticket};
pub use plan::{
    Batching, ConnectionModel, Geometry, MemoryPolicy, PRESETS, Plan, PlanRefused, Preset, Registration,
    RequestPath, ResponsePath, Transport, Waiting,
};
pub use pool::{Buffer, BufferPool, PoolError};
pub use random::{Entropy, SplitMix64, os_random};
