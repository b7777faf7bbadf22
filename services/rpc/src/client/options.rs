//! Options of a client.

use std::time::Duration;

use farcall_link::{BatchConfig, Batching, Plan, WaitStrategy};
use farcall_verbs::Nanos;

use super::TURNS;
use crate::caller::CallContext;
use crate::config::{CallerConfig, options};
use crate::tune::LinkProfile;

options! {
    /// Options of a client. The defaults suit most programs: a preset by the rules of [`crate::tune::choose`], from
    /// the profile that `farcall tune` wrote if there is one; reconnection; no deadline.
    pub struct ClientOptions {
        /// Whether the library or the configuration determines the verbs.
        verbs: Verbs = Verbs::Automatic,
        /// How long one attempt to connect may take.
        connect_timeout: Duration = Duration::from_secs(5),
        /// Whether to reconnect when the connection is lost.
        reconnect: bool = true,
        /// How long to try to reconnect before all calls fail.
        reconnect_timeout: Duration = Duration::from_secs(10),
        /// Whether to probe the connection when it is first established (about 3,000 READs).
        probe: bool = true,
        /// A profile of such a connection, measured earlier: the connection is not probed. With `None`, a client that
        /// chooses its verbs uses the profile that `farcall tune` wrote, if there is one.
        profile: Option<LinkProfile> = None,
        /// Seed of the jitter between attempts to connect.
        seed: u64 = std::process::id().into(),
        ;
        /// Options of the endpoint: plan, thread, limits.
        config: CallerConfig = CallerConfig::default(),
        /// How long a call may take; `None`: without a limit.
        call_timeout: Option<Duration> = None,
    }
}

/// Options of a call in addition to method and request.
///
/// ```
/// # use std::time::Duration;
/// # use farcall_rpc::CallOptions;
/// let options = CallOptions::new().timeout(Duration::from_millis(50)).trace_id(7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// How long the call may take; `None`: [`ClientOptions::call_timeout`].
    pub timeout: Option<Duration>,
    /// The trace that the call belongs to; 0: none.
    pub trace_id: u64,
}

impl CallOptions {
    /// Returns the defaults: the timeout of the client, and no trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long the call may take.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets the trace that the call belongs to.
    #[must_use]
    pub fn trace_id(mut self, trace_id: u64) -> Self {
        self.trace_id = trace_id;
        self
    }

    /// Returns the context of a call that begins now; `usual` is the timeout if this specifies none.
    #[inline]
    pub(crate) fn context(self, now: Nanos, usual: Option<Duration>) -> CallContext {
        let timeout = self.timeout.or(usual);
        CallContext { deadline: timeout.map(|timeout| now + timeout), trace_id: self.trace_id }
    }
}

/// Choice of a client's verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbs {
    /// The library, once, when the client first connects: see [`crate::tune::choose`]. If the server does not offer
    /// the chosen preset, the client uses the nearest one that it offers. The plan's request path, response path and
    /// transport are ignored; its other fields are kept where they differ from the default.
    Automatic,
    /// The plan of the configuration, unchanged.
    OfPlan,
}

impl ClientOptions {
    /// Returns the default options with the plan of a preset (see [`farcall_link::PRESETS`]); `None` if there is no
    /// such preset.
    pub fn preset(name: &str) -> Option<Self> {
        Some(Self::default().config(CallerConfig::default().plan(Plan::named(name)?)))
    }

    /// Sets the options of the endpoint, whose plan is used unchanged.
    #[must_use]
    pub fn config(mut self, config: CallerConfig) -> Self {
        (self.config, self.verbs) = (config, Verbs::OfPlan);
        self
    }

    /// Sets the server thread to connect to, for services whose threads differ, such as partitions. By default the
    /// server chooses a thread with few connections.
    #[must_use]
    pub fn thread(mut self, thread: u16) -> Self {
        self.config.thread = thread;
        self
    }

    /// Sets how many calls may be outstanding: a power of two.
    #[must_use]
    pub fn window(mut self, window: u16) -> Self {
        self.config.plan.geometry.window = window;
        self
    }

    /// Collects calls and sends them in batches: calls that are submitted before any of them is waited for, or made by
    /// several tasks. A batch is executed at most once as a unit.
    #[must_use]
    pub fn batch(mut self, batch: BatchConfig) -> Self {
        self.config.plan.batching = Batching::Calls(batch);
        self
    }

    /// Sets how to wait for results. Clients that only sleep request a wake-up with each result.
    #[must_use]
    pub fn wait_by(mut self, waiting: WaitStrategy) -> Self {
        self.config.plan.waiting = waiting;
        self.config.notify = matches!(waiting, WaitStrategy::EventBatch);
        self
    }

    /// Sets how long a call may take.
    #[must_use]
    pub fn call_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.call_timeout = timeout.into();
        self
    }

    /// Returns the wait strategy, counted in batches of turns.
    pub(super) fn waiting(&self) -> WaitStrategy {
        match self.config.plan.waiting {
            WaitStrategy::Adaptive { max_retry } => {
                WaitStrategy::Adaptive { max_retry: max_retry.div_ceil(TURNS) }
            }
            other => other,
        }
    }
}
