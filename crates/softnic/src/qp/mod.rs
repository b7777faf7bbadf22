//! Queue pairs: a send side that executes, a receive side that matches, and the state between them.

mod accept;
mod atomic;
mod by_owner;
mod core;
mod counters;
mod drain;
mod grants;
mod handle;
mod inbound;
mod message;
mod modify;
mod place;
mod private;
mod receive;
mod remote;
mod send;
mod shared_receive;
mod shared_target;
mod transfer;
mod transport;
mod unreliable;
mod wait_queue;

pub(crate) use self::core::{QpCore, state_of};
pub(crate) use accept::Accept;
pub(crate) use handle::{Qp, checked_cap, unknown_flags};
pub(crate) use inbound::{HAZARD_WAIT, PastInbound};
pub(crate) use place::Place;
pub(crate) use receive::RecvQueue;
pub(crate) use remote::RemoteCq;
pub(crate) use transfer::{gather_to_ring, scatter_bytes, scatter_from};
pub(crate) use transport::Connected;
pub(crate) use wait_queue::TARGET_PATIENCE;

/// Scatter/gather elements in one request.
pub(crate) const MAX_SGE: usize = 16;
/// Requests in one queue.
pub(crate) const MAX_WR: u32 = 16_384;
/// Bytes of inline data.
pub(crate) const MAX_INLINE_BYTES: u32 = 1024;
/// Bytes in one message (IBA: 2^31).
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

#[cfg(test)]
mod tests;
