//! Byte streams.
mod carried;
mod config;
mod error;
mod inlet;
mod outlet;
mod ring;
mod staging;
mod stream;
mod waking;
mod words;

pub use carried::{Carried, Carrier};
pub use config::StreamConfig;
pub use error::{Broken, OpenError, StreamError};
pub use stream::{Counters, Opening, Space, Stream};
