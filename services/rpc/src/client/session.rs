//! What the blocking and the asynchronous client share: a caller, the bootstrap connection over which its connection
//! was made, and the rules for making it again.

use std::time::Duration;

use farcall_drive::contention;
use farcall_link::Backoff;
use farcall_link::bootstrap::Welcome;
use farcall_verbs::{Clock, MonotonicClock, Nanos};

use super::bootstrap::{Bootstrap, Heard};
use super::erased::AnyCaller;
use super::{ClientOptions, TURNS};
use crate::error::{Broken, ConnectError};

/// An attempt to connect may outlast the earliest deadline by so much: a shorter one could never succeed.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// A client's session with a server thread, over one connection after the other.
pub(super) struct Session<C: ?Sized> {
    pub bootstrap: Option<Bootstrap>,
    pub address: String,
    pub options: ClientOptions,
    pub clock: MonotonicClock,
    backoff: Backoff,
    outage: Option<Outage>,
    pub caller: Box<C>,
}

/// The time without a connection.
#[derive(Clone, Copy)]
struct Outage {
    give_up_at: Nanos,
    retry_at: Nanos,
}

/// What to do without a connection.
pub(super) enum Repair {
    /// Nothing: calls have ended that the owner should take first.
    None,
    /// Wait for so long.
    Pause(Duration),
    /// Make an attempt that takes no longer than this.
    Connect(Duration),
    /// Nothing: the time for all attempts is over, and all calls have ended.
    GivenUp,
}

impl<C: AnyCaller + ?Sized> Session<C> {
    pub fn new(caller: Box<C>, address: String, options: ClientOptions) -> Self {
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(200), options.seed);
        let clock = MonotonicClock::new();
        Self { bootstrap: None, address, options, clock, backoff, outage: None, caller }
    }

    /// By the profile given, or else by a probe.
    pub fn learn_what_it_can_do(&mut self) {
        match &self.options.profile {
            Some(profile) => self.caller.set_profile(profile.clone()),
            None if self.options.probe => self.caller.probe(&self.clock),
            None => {}
        }
    }

    /// Takes in what the server says besides calls. A system call.
    #[cold]
    pub fn look(&mut self) {
        match self.bootstrap.as_mut().map(Bootstrap::look) {
            None | Some(Heard::Nothing) => {}
            Some(Heard::GoingAway) => self.caller.set_going_away(),
            Some(Heard::Gone(why)) => self.caller.break_off(why),
        }
    }

    /// One attempt to connect. Waits.
    pub fn connect(&mut self, timeout: Duration) -> Result<(), ConnectError> {
        // Under contention the handshake, too, is a wait for a peer.
        contention::sample_if_due();
        let hello = self.caller.hello()?;
        let (bootstrap, welcome) = Bootstrap::open(&self.address, &hello, timeout)?;
        self.connected(bootstrap, welcome)
    }

    /// An attempt succeeded so far.
    pub fn connected(&mut self, bootstrap: Bootstrap, welcome: Welcome) -> Result<(), ConnectError> {
        self.caller.welcome(welcome, self.clock.now())?;
        self.bootstrap = Some(bootstrap);
        tracing::debug!(server = %self.address, was_lost = self.outage.is_some(), "connected");
        self.outage = None;
        self.backoff.reset();
        Ok(())
    }

    /// An attempt failed.
    pub fn failed(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.retry_at = self.clock.now() + self.backoff.next_delay();
        }
    }

    /// Without a connection: ends the calls whose deadline has passed; all of them, when the time to connect is over.
    #[cold]
    pub fn repair(&mut self, now: Nanos) -> Repair {
        self.bootstrap = None;
        self.caller.turns(1, now);
        let begun = Outage { give_up_at: now + self.options.reconnect_timeout, retry_at: now };
        if self.outage.is_none() {
            tracing::info!(server = %self.address, "no connection: {}", self.why_broken());
        }
        let outage = *self.outage.get_or_insert(begun);
        if !self.options.reconnect || now >= outage.give_up_at {
            self.outage = None;
            let why = self.why_broken();
            self.caller.fail_all(&why);
            return Repair::GivenUp;
        }
        if self.caller.has_completion() {
            return Repair::None;
        }
        let until = Nanos::earlier(Some(outage.give_up_at), self.caller.earliest_deadline());
        let left = until.map_or(Duration::ZERO, |until| until.since(now));
        if now < outage.retry_at {
            return Repair::Pause(outage.retry_at.since(now).min(left));
        }
        Repair::Connect(self.options.connect_timeout.min(left.max(CONNECT_TIMEOUT_MIN)))
    }

    /// Why there is no connection.
    pub fn why_broken(&self) -> Broken {
        self.caller.broken().cloned().unwrap_or(Broken::Closed)
    }

    /// Ends the session at both ends.
    pub fn close(&mut self) {
        if let Some(bootstrap) = self.bootstrap.as_mut() {
            bootstrap.say_goodbye();
        }
        self.caller.break_off(Broken::Closed);
    }

    /// Turns before the owner decides on waiting.
    #[inline]
    pub fn turns(&mut self, now: Nanos) -> farcall_verbs::Next {
        self.caller.turns(TURNS, now)
    }
}
