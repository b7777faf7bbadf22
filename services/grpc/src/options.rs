//! Options and limits of channels and servers.

use farcall_stream::StreamOptions;

use crate::frame::hello::{VERSION_MAX, VERSION_MIN};
use crate::frame::{HEAD_BYTES, Hello, PAYLOAD_BYTES_MAX};

/// Options of a [`crate::Channel`] or a [`crate::Server`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcOptions {
    /// Options of the underlying streams: rings, wait strategy, connect timeout.
    pub stream: StreamOptions,
    /// Maximum number of open calls per connection. Further calls wait at the client. A call is open until its
    /// response has been read to the end.
    pub calls_max: u16,
    /// Maximum number of connections of a server. Further clients wait until one disconnects, at most as long as their
    /// connect timeout.
    pub connections_max: usize,
    /// Window in bytes: the unread data of one call that this end stores. The peer stops sending when it is full.
    pub window_bytes: u32,
}

impl Default for GrpcOptions {
    fn default() -> Self {
        let stream = StreamOptions::default();
        Self { stream, calls_max: 512, connections_max: 1_024, window_bytes: 128 << 10 }
    }
}

impl GrpcOptions {
    /// Sets the field of the same name.
    #[must_use]
    pub fn stream(mut self, stream: StreamOptions) -> Self {
        self.stream = stream;
        self
    }

    /// Sets the field of the same name; values below 1 become 1.
    #[must_use]
    pub fn calls_max(mut self, calls: u16) -> Self {
        self.calls_max = calls.max(1);
        self
    }

    /// Sets the field of the same name; values below 1 become 1.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// Sets the field of the same name; values below 1 become 1.
    #[must_use]
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.window_bytes = bytes.clamp(1, WINDOW_BYTES_MAX);
        self
    }

    /// Returns the stream options, with a lending bound that is sufficient for the longest frame in one slice.
    pub(crate) fn streams(&self) -> StreamOptions {
        let mut options = self.stream.clone();
        let config = &mut options.config;
        config.lent_bytes_max = config.lent_bytes_max.max(HEAD_BYTES + PAYLOAD_BYTES_MAX);
        options
    }

    pub(crate) fn hello(&self) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            calls_max: self.calls_max.max(1),
            window_bytes: self.window_bytes.clamp(1, WINDOW_BYTES_MAX),
        }
    }
}

/// Maximum window of a call in bytes.
pub(crate) const WINDOW_BYTES_MAX: u32 = 1 << 30;
