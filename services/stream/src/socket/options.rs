//! How sockets behave.

use std::time::Duration;

use farcall_drive::Pollers;
use farcall_link::Waiting;

use crate::config::StreamConfig;

/// How a [`super::StreamSocket`] or an `AsyncStream` behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The endpoint's own.
    pub config: StreamConfig,
    /// How a call waits: how long it polls before it sleeps.
    pub waiting: Waiting,
    /// Who looks while calls sleep, or while the owner of a descriptor does (BPEV). `None`: nobody; the peer wakes it.
    pub pollers: Option<Pollers>,
    /// How long connecting may take, and how long a client may take to say what it wants.
    pub connect_timeout: Duration,
    /// How long dropping a stream waits until what was written has arrived.
    pub linger: Duration,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            config: StreamConfig::default(),
            waiting: Waiting::Adaptive { max_retry: 2_000 },
            pollers: None,
            connect_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
        }
    }
}

impl StreamOptions {
    /// See the field.
    #[must_use]
    pub fn config(mut self, config: StreamConfig) -> Self {
        self.config = config;
        self
    }

    /// See the field.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// See the field.
    #[must_use]
    pub fn pollers(mut self, pollers: Pollers) -> Self {
        self.pollers = Some(pollers);
        self
    }

    /// See the field.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// See the field.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// For owners that wait on the descriptor of a socket instead of in its calls.
    #[must_use]
    pub fn pollable(mut self) -> Self {
        self.config.may_poll = false;
        self.waiting = Waiting::EventBatch;
        self
    }
}
