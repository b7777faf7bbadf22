//! A store whose clients READ it, as a target of the load generator.

use super::rpc::{Traffic, failed_call};
use super::target::{Outcome, Request, Target, TargetError};
use farcall::rpc::ClientOptions;
use farcall_kv::bypass::{Answer, BypassClient, BypassError, ReadCounters, Scheme};
use farcall_link::Nic;
use farcall_verbs::with_sources;
use std::net::SocketAddr;
use std::time::Instant;

/// A connection to a store. The calling thread polls.
pub struct BypassTarget<S> {
    client: BypassClient<S>,
    incarnation: u64,
    lost_at: Option<Instant>,
    /// Slot numbers of the load generator, by slot of the client's window.
    slots: Vec<u32>,
}

impl<S: Scheme> BypassTarget<S> {
    /// Connects with the window of `options`.
    ///
    /// # Errors
    /// Returns an error if there is no device, if the store cannot be reached, or if the server is not such a store.
    pub fn connect(nic: &Nic, address: SocketAddr, options: &ClientOptions) -> Result<Self, BypassError> {
        let mut with_path = BypassClient::<S>::options();
        with_path.config.plan.geometry.window = options.config.plan.geometry.window;
        with_path.connect_timeout = options.connect_timeout;
        let with_path = with_path.call_timeout(options.call_timeout).probe(false);
        let client = BypassClient::connect(nic, &address.to_string(), with_path)?;
        let incarnation = client.calls().server_incarnation();
        let slots = vec![0; client.available()];
        Ok(Self { client, incarnation, lost_at: None, slots })
    }

    /// Returns the traffic so far: READs, and the verbs of calls.
    pub fn traffic(&self) -> Traffic {
        let (calls, gets) = (Traffic::of(self.client.calls().counters()), self.client.counters());
        Traffic { verbs: calls.verbs + gets.reads, ..calls }
    }

    /// Returns the cost of GETs so far.
    pub fn gets(&self) -> ReadCounters {
        self.client.counters()
    }

    /// Returns when the loss of the connection was detected; `None` if it was not lost.
    pub fn lost_at(&self) -> Option<Instant> {
        self.lost_at
    }

    /// Returns whether the connection now leads to another server process than at its start.
    pub fn has_restarted(&self) -> bool {
        self.client.calls().server_incarnation() != self.incarnation
    }

    /// Accepts the restart of the server: later requests go to the new process.
    pub fn accept_restart(&mut self) {
        self.incarnation = self.client.calls().server_incarnation();
    }

    /// Detects a loss of the connection, which the client re-establishes by itself, and a restart of the server.
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
        let operation = begun.map_err(|error| TargetError::Protocol(with_sources(&error)))?;
        self.slots[operation.slot()] = slot;
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    #[inline]
    fn poll(&mut self, mut done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError> {
        self.client.progress();
        while let Some(ended) = self.client.next_completed() {
            let outcome = match ended.result {
                Ok(Answer::Value(value)) => Outcome::Value(value),
                Ok(Answer::Missing) => Outcome::Absent,
                Ok(Answer::Stored | Answer::Deleted) => Outcome::Stored,
                Err(BypassError::Call(error)) => failed_call(&error)?,
                Err(error) => return Err(TargetError::Lost(with_sources(&error))),
            };
            done(self.slots[ended.operation.slot()], outcome);
        }
        if !self.has_restarted() && self.client.calls().is_connected() && self.lost_at.is_none() {
            return Ok(());
        }
        self.watch()
    }
}
