//! Byte streams: reliable, ordered bytes in both directions between two processes, over any provider.
//!
//! - [`StreamListener`] and [`StreamSocket`] are used as those of [`std::net`] are; a socket can be waited on by poll
//!   and epoll ([`StreamOptions::pollable`]).
//! - `AsyncStreamListener` and `AsyncStream` (feature `tokio`) are tokio's `AsyncRead` and `AsyncWrite`.
//! - A [`Nic`] is an open device: `Nic::open(&SoftNic::new())`.
//! - [`StreamSocket::operate`] reaches the [`Stream`] below, which lends what arrived ([`Stream::fill`]) and lets
//!   messages be composed where they are sent from ([`Stream::write_with`]).

pub use farcall_stream::{
    Asked, Broken, Counters, OpenError, Space, Stream, StreamConfig, StreamError, StreamListener,
    StreamOptions, StreamPath, StreamSocket,
};
#[cfg(feature = "tokio")]
pub use farcall_stream::{AsyncStream, AsyncStreamListener};

/// An open device with what every connection needs: for [`StreamListener::bind`] and [`StreamSocket::connect`].
pub use farcall_link::Nic;

/// How a call waits: for [`StreamOptions::waiting`].
pub use farcall_link::Waiting;
