//! A store that its clients READ, as a target.

use super::rpc::{Traffic, failed_call};
use super::target::{Outcome, Request, Target, TargetError};
use farcall_kv::bypass::{Answer, BypassClient, BypassError, ReadCounters, Scheme};
use farcall_rpc::ClientOptions;
use farcall_verbs::Provider;
use std::net::SocketAddr;
use std::time::Instant;

/// A connection to a store. The calling thread polls.
pub struct BypassTarget<S> {
    client: BypassClient<S>,
    incarnation: u64,
    lost_at: Option<Instant>,
    /// By places of the client's window.
    slots: Vec<u32>,
}

impl<S: Scheme> BypassTarget<S> {
    /// Connects, with a window of `options`.
    ///
    /// # Errors
    /// When there is no device, or the store cannot be reached or is none.
    pub fn connect(
        provider: &dyn Provider,
        address: SocketAddr,
        options: &ClientOptions,
    ) -> Result<Self, BypassError> {
        let mut with_path = BypassClient::<S>::options();
        with_path.config.plan.geometry.window = options.config.plan.geometry.window;
        with_path.connect_timeout = options.connect_timeout;
        let with_path = with_path.call_timeout(options.call_timeout).probe(false);
        let client = BypassClient::connect(provider, &address.to_string(), with_path)?;
        let incarnation = client.calls().server_incarnation();
        let slots = vec![0; client.available()];
        Ok(Self { client, incarnation, lost_at: None, slots })
    }

    /// What travelled so far: READs, and what calls took.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let (calls, gets) = (Traffic::of(self.client.calls().counters()), self.client.counters());
        Traffic { verbs: calls.verbs + gets.reads, ..calls }
    }

    /// What GETs took so far.
    #[must_use]
    pub fn gets(&self) -> ReadCounters {
        self.client.counters()
    }

    /// When the connection was found to be lost, unless it goes on.
    #[must_use]
    pub fn lost_at(&self) -> Option<Instant> {
        self.lost_at
    }

    /// Whether the connection goes to another server than it began with.
    #[must_use]
    pub fn has_restarted(&self) -> bool {
        self.client.calls().server_incarnation() != self.incarnation
    }

    /// Accepts that the server restarted: requests go to the new one from now on.
    pub fn accept_restart(&mut self) {
        self.incarnation = self.client.calls().server_incarnation();
    }

    /// The connection is lost, or was; the client makes it again by itself.
    #[cold]
    fn watch(&mut self) -> Result<(), TargetError> {
        if !self.client.calls().is_connected() {
            self.lost_at.get_or_insert_with(Instant::now);
            return Ok(());
        }
        if self.has_restarted() {
            return Err(TargetError::Restarted);
        }
        self.lost_at = None;
        Ok(())
    }
}

impl<S: Scheme> Target for BypassTarget<S> {
    #[inline]
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError> {
        let begun = match request {
            Request::Get { key } => self.client.begin_get(key),
            Request::Put { key, value } => self.client.begin_put(key, value),
        };
        let operation = begun.map_err(|error| TargetError::Protocol(error.to_string()))?;
        self.slots[operation.place()] = slot;
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    #[inline]
    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        self.client.progress();
        while let Some(ended) = self.client.next_ended() {
            let outcome = match ended.result {
                Ok(Answer::Value(value)) => Outcome::Value(value),
                Ok(Answer::Missing) => Outcome::Absent,
                Ok(Answer::Stored | Answer::Deleted) => Outcome::Stored,
                Err(BypassError::Call(error)) => failed_call(&error)?,
                Err(error) => return Err(TargetError::Lost(error.to_string())),
            };
            done(self.slots[ended.operation.place()], outcome);
        }
        if !self.has_restarted() && self.client.calls().is_connected() && self.lost_at.is_none() {
            return Ok(());
        }
        self.watch()
    }
}
