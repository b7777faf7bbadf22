//! Queue pairs: a send side that executes, a receive side that matches, and the state between them.

mod accept;
mod atomic;
mod core;
mod counters;
mod drain;
mod execute;
mod grants;
mod inbound;
mod initiator;
mod matching;
mod message;
mod owner_request;
mod post;
mod private;
mod receive;
mod remote_cq;
mod request;
mod send;
mod shared_receive;
mod shared_target;
mod transfer;
mod transport;
mod unreliable;
mod wait_queue;
mod way;

pub(crate) use self::core::QpCore;
pub(crate) use accept::Accept;
pub(crate) use inbound::{HAZARD_WAIT, PastInbound};
pub(crate) use initiator::map_ring;
pub(crate) use receive::{RecvQueue, key_bit};
pub(crate) use remote_cq::RemoteCq;
pub(crate) use shared_receive::Polled;
pub(crate) use transfer::{gather_to_ring, gather_to_vec, scatter_bytes, scatter_from};
pub(crate) use transport::Connected;
pub(crate) use wait_queue::TARGET_WAIT_MIN;

/// Scatter/gather elements in one request.
pub(crate) const MAX_SGE: usize = 16;
/// Requests in one queue.
pub(crate) const MAX_WR: u32 = 16_384;
/// Bytes of inline data that can be asked for. Most requests are executed while they are posted: they cost the same
/// inline and not.
pub(crate) const MAX_INLINE_BYTES: u32 = 64 << 10;
/// Bytes of inline data that a queue pair has whatever was asked for.
pub(crate) const USUAL_INLINE_BYTES: u32 = 1024;
