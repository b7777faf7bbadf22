//! Options of sockets.

use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::WaitStrategy;

use crate::config::StreamConfig;

/// Options of a [`super::StreamSocket`] or an `AsyncStream`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Configuration of the stream endpoint.
    pub config: StreamConfig,
    /// Wait strategy of calls: how long they poll before they sleep.
    pub waiting: WaitStrategy,
    /// Pollers that poll while calls sleep, or while the application waits on a descriptor (BPEV). If `None`, the peer
    /// sends wake-ups.
    pub pollers: Option<Pollers>,
    /// Timeout for connecting, and for the handshake of an accepted client.
    pub connect_timeout: Duration,
    /// Maximum time that dropping a stream waits until all written bytes have arrived.
    pub linger: Duration,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            config: StreamConfig::default(),
            waiting: WaitStrategy::Adaptive { max_retry: 2_000 },
            pollers: None,
            connect_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
        }
    }
}

impl StreamOptions {
    /// Sets the field of the same name.
    #[must_use]
    pub fn config(mut self, config: StreamConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn waiting(mut self, waiting: WaitStrategy) -> Self {
        self.waiting = waiting;
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn pollers(mut self, pollers: Pollers) -> Self {
        self.pollers = Some(pollers);
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the field of the same name.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Configures sockets whose application waits on their descriptor instead of in their calls.
    #[must_use]
    pub fn pollable(mut self) -> Self {
        self.config.may_poll = false;
        self.waiting = WaitStrategy::EventBatch;
        self
    }
}
