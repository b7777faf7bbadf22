//! The store's requests and replies as carried by Farcall RPC, and the service that executes them.
//!
//! Version 1. All numbers are little-endian, all offsets fixed; a request begins with
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version, now 1 |
//! | 1 | 1 | key length (0 where the method has no key) |
//! | 2 | 2 | options; unknown bits are refused |
//!
//! followed by the method's own fixed fields, the key, and the value up to the end of the request. A reply
//! begins with
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version |
//! | 1 | 1 | [`Status`] |
//! | 2 | 2 | zero |
//!
//! followed by the method's body if the status is [`Status::Ok`]. An invalid request does not result in a status but
//! in a [`ServiceError`], which the RPC layer carries as its error reply.

pub mod client;
mod method;
mod multi;
mod reply;
mod request;
mod service;

pub use method::Method;
pub use multi::{
    KeyIter, Lookup, MULTI_KEYS_MAX, MULTI_REPLY_SOFT_MAX_BYTES, MultiItem, MultiReply, encode_multi_get,
};
#[cfg(feature = "server")]
pub(crate) use reply::encode_stats;
pub use reply::{
    PingReply, ReplyError, Status, decode_count, decode_item, decode_ping_reply, decode_stats, decode_status,
    decode_version,
};
pub use request::{Counter, Request, RequestError};
pub use service::{Service, ServiceError};

/// Protocol version of this build.
pub const VERSION: u8 = 1;

/// Destination of a reply, written front to back.
pub trait ReplySink {
    /// Appends `bytes` to the reply.
    fn push(&mut self, bytes: &[u8]);
}

impl ReplySink for Vec<u8> {
    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
