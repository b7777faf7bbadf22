//! All limits and knobs in one place.

use farcall_stream::StreamOptions;

use crate::frame::hello::{VERSION_MAX, VERSION_MIN};
use crate::frame::{HEAD_BYTES, Hello, PAYLOAD_BYTES_MAX};

/// How a [`crate::Channel`] or a [`crate::Server`] behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcOptions {
    /// The streams below: rings, waiting, how long connecting may take.
    pub stream: StreamOptions,
    /// Calls that may be open at once over one connection. More of them wait at the client. A call whose response was
    /// not read to its end is open.
    pub calls_max: u16,
    /// Clients that a server serves at once; further ones wait until one leaves, as long as their patience to connect.
    pub connections_max: usize,
    /// Bytes of one call that this end keeps for a reader that does not read; its peer stops there.
    pub window_bytes: u32,
}

impl Default for GrpcOptions {
    fn default() -> Self {
        let stream = StreamOptions::default();
        Self { stream, calls_max: 512, connections_max: 1_024, window_bytes: 128 << 10 }
    }
}

impl GrpcOptions {
    /// See the field.
    #[must_use]
    pub fn stream(mut self, stream: StreamOptions) -> Self {
        self.stream = stream;
        self
    }

    /// See the field. At least 1.
    #[must_use]
    pub fn calls_max(mut self, calls: u16) -> Self {
        self.calls_max = calls.max(1);
        self
    }

    /// See the field. At least 1.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// See the field. At least 1.
    #[must_use]
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.window_bytes = bytes.clamp(1, WINDOW_BYTES_MAX);
        self
    }

    /// The longest frame has to be lent in one piece.
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

/// The most that a peer may be allowed to send of one call.
pub(crate) const WINDOW_BYTES_MAX: u32 = 1 << 30;
