//! Byte streams.
mod carried;
mod config;
mod error;
mod inlet;
mod outlet;
mod receive_ring;
mod ring;
mod socket;
mod staging;
mod stream;
mod waking;
#[cfg(test)]
mod waking_model;
mod words;

pub use carried::{Carried, Carrier};
pub use config::StreamConfig;
pub use error::{Broken, OpenError, StreamError};
#[cfg(feature = "tokio")]
pub use socket::{AsyncStream, AsyncStreamListener};
pub use socket::{StreamListener, StreamOptions, StreamSocket};
pub use stream::{Counters, Opening, Space, Stream};
