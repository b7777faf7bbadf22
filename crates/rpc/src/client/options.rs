//! How a client is set up.

use std::time::Duration;

use farcall_link::{BatchConfig, Batching, Plan, Waiting};

use super::TURNS;
use crate::config::{CallerConfig, options};
use crate::tune::LinkProfile;

options! {
    /// How a client behaves. The defaults suit most: preset `rf-rpc`, R and F from a probe of the connection and the
    /// calls made, reconnection, no deadline.
    pub struct ClientOptions {
        /// The endpoint's own: plan, thread, limits.
        config: CallerConfig = CallerConfig::default(),
        /// How long one attempt to connect may take.
        connect_timeout: Duration = Duration::from_secs(5),
        /// Whether to connect again when the connection breaks.
        reconnect: bool = true,
        /// How long to try to connect again before all calls fail.
        reconnect_timeout: Duration = Duration::from_secs(10),
        /// Whether to probe the connection when it is first made (about three thousand READs).
        probe: bool = true,
        /// What such a connection can do, measured before: it is not probed.
        profile: Option<LinkProfile> = None,
        /// Seed of the jitter between attempts to connect.
        seed: u64 = std::process::id().into(),
        ;
        /// How long a call may take; `None`: for ever.
        call_timeout: Option<Duration> = None,
    }
}

impl ClientOptions {
    /// The default options with the plan of a preset (see [`farcall_link::PRESETS`]); `None` if there is no such
    /// preset.
    pub fn preset(name: &str) -> Option<Self> {
        let plan = Plan::named(name)?;
        Some(Self { config: CallerConfig::default().plan(plan), ..Self::default() })
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

    /// Gathers calls and sends them in batches: calls that are submitted and not waited for yet, or made by several
    /// tasks. A batch is executed at most once, as a whole.
    #[must_use]
    pub fn batch(mut self, batch: BatchConfig) -> Self {
        self.config.plan.batching = Batching::Calls(batch);
        self
    }

    /// How to wait for results. Clients that only sleep ask for a wake-up with each.
    #[must_use]
    pub fn wait_by(mut self, waiting: Waiting) -> Self {
        self.config.plan.waiting = waiting;
        self.config.notify = matches!(waiting, Waiting::EventBatch);
        self
    }

    /// How long a call may take.
    #[must_use]
    pub fn call_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.call_timeout = timeout.into();
        self
    }

    /// The way of waiting, counted in batches of turns.
    pub(super) fn waiting(&self) -> Waiting {
        match self.config.plan.waiting {
            Waiting::Adaptive { max_retry } => Waiting::Adaptive { max_retry: max_retry.div_ceil(TURNS) },
            other => other,
        }
    }
}
