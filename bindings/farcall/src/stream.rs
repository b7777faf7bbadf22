//! Byte streams: reliable, ordered bytes in both directions between two processes, over any provider.
//!
//! - [`StreamListener`] and [`StreamSocket`] have the interface of those of [`std::net`]; a socket can be used with
//!   poll and epoll ([`StreamOptions::pollable`]).
//! - `AsyncStreamListener` and `AsyncStream` (feature `tokio`) implement tokio's `AsyncRead` and `AsyncWrite`.
//! - A [`Nic`](crate::Nic) is an open device: `Nic::open(&SoftNic::new())`.
//! - [`StreamSocket::operate`] gives access to the underlying [`Stream`], which lends the received bytes
//!   ([`Stream::fill`]) and allows messages to be composed in the send buffer ([`Stream::write_with`]).

pub use farcall_stream::{
    AcceptCounts, Broken, Counters, OpenError, Stream, StreamConfig, StreamError, StreamListener,
    StreamOptions, StreamPath, StreamSocket, WriteBuffer,
};
#[cfg(feature = "tokio")]
pub use farcall_stream::{AsyncStream, AsyncStreamListener};

/// Wait strategy of a call, for [`StreamOptions::waiting`].
pub use farcall_link::WaitStrategy;
