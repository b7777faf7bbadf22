//! Queue pairs: a send side that executes requests, a receive side that matches messages, and their common state.

mod accept;
mod atomic;
mod core;
mod counters;
mod drain;
mod execute;
mod grants;
mod in_flight;
mod inbound;
mod initiator;
mod matching;
mod message;
mod peer_connection;
mod post;
mod proxied_request;
mod queue_pair;
mod receive;
mod recv_queue;
mod remote_cq;
mod request;
mod send;
mod shared_receive;
mod shared_recv_source;
mod shared_target;
mod transfer;
mod transport;
mod unmapped_region;
mod unreliable;
mod wait_queue;

pub(crate) use self::core::QpCore;
pub(crate) use accept::Accept;
pub(crate) use inbound::{HAZARD_WAIT, RevokedGrant};
pub(crate) use initiator::map_ring;
pub(crate) use proxied_request::ACCESS_BYTES;
pub(crate) use queue_pair::QueuePair;
pub(crate) use recv_queue::{RecvQueue, key_bit};
pub(crate) use remote_cq::RemoteCq;
pub(crate) use shared_recv_source::SharedRecvSource;
pub(crate) use transfer::{gather_to_ring, gather_to_vec, scatter_bytes, scatter_from};
pub(crate) use transport::Connected;
pub(crate) use wait_queue::TARGET_WAIT_MIN;

/// Maximum number of scatter/gather elements in a request.
pub(crate) const MAX_SGE: usize = 16;
/// Maximum number of requests in a queue.
pub(crate) const MAX_WR: u32 = 16_384;
/// Maximum inline data of a queue pair in bytes. Most requests are executed while they are posted, so inline data does
/// not affect their cost.
pub(crate) const MAX_INLINE_BYTES: u32 = 64 << 10;
/// Inline data in bytes that every queue pair supports, even if less was requested.
pub(crate) const USUAL_INLINE_BYTES: u32 = 1024;
