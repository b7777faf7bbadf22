//! How a client is set up.

use std::time::Duration;

use farcall_link::{BatchConfig, Batching, Plan, Waiting};
use farcall_verbs::Nanos;

use super::TURNS;
use crate::caller::CallOptions;
use crate::config::{CallerConfig, options};
use crate::tune::LinkProfile;

options! {
    /// How a client behaves. The defaults suit most: a preset by the rules of [`crate::tune::choose`], from the profile
    /// that `farcall tune` wrote if there is one; reconnection; no deadline.
    pub struct ClientOptions {
        /// Who says which verbs it uses.
        verbs: Verbs = Verbs::Automatic,
        /// How long one attempt to connect may take.
        connect_timeout: Duration = Duration::from_secs(5),
        /// Whether to connect again when the connection breaks.
        reconnect: bool = true,
        /// How long to try to connect again before all calls fail.
        reconnect_timeout: Duration = Duration::from_secs(10),
        /// Whether to probe the connection when it is first made (about three thousand READs).
        probe: bool = true,
        /// What such a connection can do, measured before: it is not probed. With `None`, a client that chooses its
        /// verbs looks for what `farcall tune` wrote.
        profile: Option<LinkProfile> = None,
        /// Seed of the jitter between attempts to connect.
        seed: u64 = std::process::id().into(),
        ;
        /// The endpoint's own: plan, thread, limits.
        config: CallerConfig = CallerConfig::default(),
        /// How long a call may take; `None`: for ever.
        call_timeout: Option<Duration> = None,
    }
}

/// What calls may have besides method and request, where there is no clock at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerCall {
    /// How long a call may take; `None`: as long as [`ClientOptions::call_timeout`] says.
    pub timeout: Option<Duration>,
    /// The trace it belongs to; 0: none.
    pub trace_id: u64,
}

impl PerCall {
    /// A call may take so long.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// It belongs to this trace.
    #[must_use]
    pub fn trace_id(mut self, trace_id: u64) -> Self {
        self.trace_id = trace_id;
        self
    }

    /// Options of a call that begins now; `usual` is how long calls may take that say nothing.
    pub(crate) fn from(self, now: Nanos, usual: Option<Duration>) -> CallOptions {
        let timeout = self.timeout.or(usual);
        CallOptions { deadline: timeout.map(|timeout| now + timeout), trace_id: self.trace_id }
    }
}

/// Who says which verbs a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbs {
    /// The library, once, when the client first connects: see [`crate::tune::choose`]. What the server does not offer
    /// gives way to the nearest preset that it does. Of the plan, request path, response path and transport are of no
    /// account; what else it holds is kept where it is not the default.
    Automatic,
    /// The plan of the configuration, as it is.
    OfPlan,
}

impl ClientOptions {
    /// The default options with the plan of a preset (see [`farcall_link::PRESETS`]); `None` if there is no such
    /// preset.
    pub fn preset(name: &str) -> Option<Self> {
        Some(Self::default().config(CallerConfig::default().plan(Plan::named(name)?)))
    }

    /// The endpoint's own options, with the plan to take as it is.
    #[must_use]
    pub fn config(mut self, config: CallerConfig) -> Self {
        (self.config, self.verbs) = (config, Verbs::OfPlan);
        self
    }

    /// The server thread to connect to: for services whose threads differ, as partitions do. By default the server
    /// chooses one with few connections.
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
