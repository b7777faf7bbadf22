//! How a client is set up.

use std::time::Duration;

use farcall_link::{Backoff, Plan, Waiting};

use super::TURNS;
use crate::config::CallerConfig;

/// How a client behaves. The defaults suit most: preset `rf-rpc`, R and F from a probe of the link and the calls made,
/// reconnection, no deadline.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The endpoint's own knobs: plan, thread, limits.
    pub config: CallerConfig,
    /// How long a call may take; `None`: for ever.
    pub call_timeout: Option<Duration>,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// Whether to connect again when the connection breaks.
    pub reconnect: bool,
    /// How long to try to connect again before all calls fail.
    pub reconnect_timeout: Duration,
    /// Whether to probe the link when connecting (about a thousand READs).
    pub probe: bool,
    /// Seed of the jitter between attempts to connect.
    pub seed: u64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            config: CallerConfig::default(),
            call_timeout: None,
            connect_timeout: Duration::from_secs(5),
            reconnect: true,
            reconnect_timeout: Duration::from_secs(10),
            probe: true,
            seed: std::process::id().into(),
        }
    }
}

impl ClientOptions {
    /// The default options with a preset's plan: `rf-rpc` or `server-reply`. `None` if there is no such preset.
    pub fn preset(name: &str) -> Option<Self> {
        let plan = Plan::named(name)?;
        Some(Self { config: CallerConfig { plan, ..CallerConfig::default() }, ..Self::default() })
    }

    /// The server thread to connect to.
    #[must_use]
    pub fn thread(mut self, thread: u16) -> Self {
        self.config.thread = thread;
        self
    }

    /// How many calls may be outstanding: a power of two.
    #[must_use]
    pub fn window(mut self, window: u16) -> Self {
        self.config.plan.geometry.window = window;
        self
    }

    /// How to wait for results. Clients that only sleep ask for a wake-up with each.
    #[must_use]
    pub fn wait_by(mut self, waiting: Waiting) -> Self {
        self.config.plan.waiting = waiting;
        self.config.notify = matches!(waiting, Waiting::Event | Waiting::EventBatch);
        self
    }

    /// How long a call may take.
    #[must_use]
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = Some(timeout);
        self
    }

    /// The way of waiting, counted in batches of turns.
    pub(super) fn waiting(&self) -> Waiting {
        match self.config.plan.waiting {
            Waiting::Adaptive { max_poll_wc, max_retry } => {
                Waiting::Adaptive { max_poll_wc, max_retry: max_retry.div_ceil(TURNS) }
            }
            other => other,
        }
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_millis(1), Duration::from_millis(200), self.seed)
    }
}
