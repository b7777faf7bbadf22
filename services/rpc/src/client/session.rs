//! The common part of the blocking and the asynchronous client: a caller, the bootstrap connection over which it
//! connected, and the rules for reconnecting.

use std::time::Duration;

use farcall_drive::contention;
use farcall_link::Backoff;
use farcall_link::bootstrap::Welcome;
use farcall_verbs::{Clock, MonotonicClock, Nanos};

use super::bootstrap::{Bootstrap, ServerNotice};
use super::erased::AnyCaller;
use super::{ClientOptions, TURNS};
use crate::error::{Broken, ConnectError};

/// Minimum timeout of an attempt to connect, even if the earliest deadline is sooner: a shorter attempt could never
/// succeed.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// A client's session with a server thread, over successive connections.
pub(super) struct Session<C: ?Sized> {
    pub bootstrap: Option<Bootstrap>,
    pub address: String,
    pub options: ClientOptions,
    pub clock: MonotonicClock,
    backoff: Backoff,
    outage: Option<Outage>,
    pub caller: Box<C>,
}

/// A period without a connection.
#[derive(Clone, Copy)]
struct Outage {
    abandon_at: Nanos,
    retry_at: Nanos,
}

/// Next action of a client without a connection.
pub(super) enum ReconnectAction {
    /// No action: calls have completed that the client should return first.
    None,
    /// Wait for this long.
    Pause(Duration),
    /// Try to connect with this timeout.
    Connect(Duration),
    /// No action: the reconnect timeout has expired, and all calls have ended.
    Abandoned,
}

impl<C: AnyCaller + ?Sized> Session<C> {
    pub fn new(caller: Box<C>, address: String, options: ClientOptions) -> Self {
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(200), options.seed);
        let clock = MonotonicClock::new();
        Self { bootstrap: None, address, options, clock, backoff, outage: None, caller }
    }

    /// Sets the caller's profile from the options, or measures it with a probe.
    pub fn init_profile(&mut self) {
        match &self.options.profile {
            Some(profile) => self.caller.set_profile(profile.clone()),
            None if self.options.probe => self.caller.probe(&self.clock),
            None => {}
        }
    }

    /// Handles the server's notices. Costs a system call.
    #[cold]
    pub fn check_bootstrap(&mut self) {
        match self.bootstrap.as_mut().map(Bootstrap::poll_notices) {
            None | Some(ServerNotice::None) => {}
            Some(ServerNotice::Draining) => self.caller.set_draining(),
            Some(ServerNotice::Ended(why)) => self.caller.disconnect(why),
        }
    }

    /// Makes one attempt to connect. Blocks.
    pub fn connect(&mut self, timeout: Duration) -> Result<(), ConnectError> {
        // Under contention for processors, the handshake also waits for a peer process.
        contention::sample_if_due();
        let hello = self.caller.hello()?;
        let (bootstrap, welcome) = Bootstrap::open(&self.address, &hello, timeout)?;
        self.connected(bootstrap, welcome)
    }

    /// Completes an attempt whose handshake succeeded.
    pub fn connected(&mut self, bootstrap: Bootstrap, welcome: Welcome) -> Result<(), ConnectError> {
        self.caller.welcome(welcome, self.clock.now())?;
        self.bootstrap = Some(bootstrap);
        tracing::debug!(server = %self.address, was_lost = self.outage.is_some(), "connected");
        self.outage = None;
        self.backoff.reset();
        Ok(())
    }

    /// Records that an attempt failed.
    pub fn failed(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.retry_at = self.clock.now() + self.backoff.next_delay();
        }
    }

    /// Called without a connection: ends the calls whose deadline has passed, or all of them after the reconnect
    /// timeout.
    #[cold]
    pub fn reconnect_action(&mut self, now: Nanos) -> ReconnectAction {
        self.bootstrap = None;
        self.caller.turns(1, now);
        let begun = Outage { abandon_at: now + self.options.reconnect_timeout, retry_at: now };
        if self.outage.is_none() {
            tracing::info!(server = %self.address, "no connection: {}", self.why_broken());
        }
        let outage = *self.outage.get_or_insert(begun);
        if !self.options.reconnect || now >= outage.abandon_at {
            self.outage = None;
            let why = self.why_broken();
            self.caller.fail_all(&why);
            return ReconnectAction::Abandoned;
        }
        if self.caller.has_completion() {
            return ReconnectAction::None;
        }
        let until = Nanos::earlier(Some(outage.abandon_at), self.caller.earliest_deadline());
        let left = until.map_or(Duration::ZERO, |until| until.since(now));
        if now < outage.retry_at {
            return ReconnectAction::Pause(outage.retry_at.since(now).min(left));
        }
        ReconnectAction::Connect(self.options.connect_timeout.min(left.max(CONNECT_TIMEOUT_MIN)))
    }

    /// Returns why there is no connection.
    pub fn why_broken(&self) -> Broken {
        self.caller.broken().cloned().unwrap_or(Broken::Closed)
    }

    /// Ends the session at both ends.
    pub fn close(&mut self) {
        if let Some(bootstrap) = self.bootstrap.as_mut() {
            bootstrap.send_close();
        }
        self.caller.disconnect(Broken::Closed);
    }

    /// Makes the driver iterations that precede a decision on waiting.
    #[inline]
    pub fn turns(&mut self, now: Nanos) -> farcall_verbs::Progress {
        self.caller.turns(TURNS, now)
    }
}
