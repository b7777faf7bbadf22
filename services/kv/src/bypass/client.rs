//! Blocking client: GETs by READs, PUTs and DELETEs by calls, one at a time or a window of them.

use farcall_link::Nic;
use farcall_rpc::{CallError, CallId, Client, ClientOptions};

use super::extents::encode_pair;
use super::operations::{Answer, Calls, CompletedRequest, OperationId, Operations};
use super::service::method;
use super::{BypassError, ReadCounters, Scheme};
use crate::key;

/// Number of iterations without a pending call after which the connection for calls is polled even so.
const TURNS_TO_CALLS: u32 = 64;
/// Number of iterations without a completed request after which the thread yields.
const TURNS_TO_YIELD: u32 = 1_000;

/// A connection to a store.
pub struct BypassClient<S> {
    calls: Client,
    operations: Operations<S>,
    request: Vec<u8>,
    reply: Vec<u8>,
    turns: u32,
}

impl Calls for Client {
    fn submit(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        Self::submit(self, method, request)
    }

    fn incarnation(&self) -> u64 {
        self.server_incarnation()
    }
}

impl<S: Scheme> BypassClient<S> {
    /// Returns suitable options: those of the preset that the scheme uses for calls.
    #[must_use]
    pub fn options() -> ClientOptions {
        ClientOptions::preset(S::CALLS).unwrap_or_default()
    }

    /// Connects to a server of [`super::serve`]. The window of requests is that of the calls.
    ///
    /// # Errors
    /// If the server cannot be reached, or is not such a store.
    pub fn connect(nic: &Nic, address: &str, options: ClientOptions) -> Result<Self, BypassError> {
        let window = options.config.plan.geometry.window;
        let mut calls = Client::connect(nic, address, options.thread(0))?;
        let mut operations = Operations::new(nic.clone(), window.into());
        let (pair, request) = operations.request_reader(&calls)?;
        let mut reply = Vec::new();
        calls.call(method::OPEN, &request, &mut reply)?;
        operations.connect_reader(pair, &reply)?;
        Ok(Self { calls, operations, request, reply, turns: 0 })
    }

    /// Returns the counters of GETs so far.
    #[must_use]
    pub fn counters(&self) -> ReadCounters {
        self.operations.counters()
    }

    /// Returns the connection used for calls.
    #[must_use]
    pub fn calls(&self) -> &Client {
        &self.calls
    }

    /// Appends the value of a key to `value`. Returns whether there is one.
    ///
    /// # Errors
    /// [`BypassError`]. If READs fail, the GET is retried over a new connection.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BypassError> {
        let operation = self.begin_get(key)?;
        loop {
            if let Some(ended) = self.operations.ended(operation) {
                let Answer::Value(found) = ended.result? else { return Ok(false) };
                value.extend_from_slice(found);
                return Ok(true);
            }
            self.turn();
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`BypassError`]. If the store refuses the value, the key keeps its previous value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BypassError> {
        self.call(method::PUT, key, value)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// [`BypassError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, BypassError> {
        self.call(method::DELETE, key, &[])?;
        Ok(!self.reply.is_empty())
    }

    fn call(&mut self, method: u16, key: &[u8], value: &[u8]) -> Result<(), BypassError> {
        key::check(key)?;
        encode_pair(key, value, &mut self.request);
        self.reply.clear();
        Ok(self.calls.call(method, &self.request, &mut self.reply)?)
    }

    /// Starts a GET without waiting for it; [`Self::next_completed`] returns its result.
    ///
    /// # Errors
    /// If the key is invalid, or the window is full.
    pub fn begin_get(&mut self, key: &[u8]) -> Result<OperationId, BypassError> {
        self.operations.get(key, &mut self.calls)
    }

    /// Starts a PUT, like [`Self::begin_get`].
    ///
    /// # Errors
    /// Like [`Self::begin_get`].
    pub fn begin_put(&mut self, key: &[u8], value: &[u8]) -> Result<OperationId, BypassError> {
        self.operations.put(key, value, &mut self.calls)
    }

    /// Starts a DELETE, like [`Self::begin_get`].
    ///
    /// # Errors
    /// Like [`Self::begin_get`].
    pub fn begin_delete(&mut self, key: &[u8]) -> Result<OperationId, BypassError> {
        self.operations.delete(key, &mut self.calls)
    }

    /// Returns the number of requests that can be started now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.operations.available()
    }

    /// Returns the next completed request.
    pub fn next_completed(&mut self) -> Option<CompletedRequest<'_>> {
        self.operations.next_completed()
    }

    /// Waits for the next request to complete. Returns `None` if none is in progress.
    pub fn wait(&mut self) -> Option<CompletedRequest<'_>> {
        while self.operations.has_open() && !self.operations.has_completed() {
            self.turn();
        }
        self.operations.next_completed()
    }

    /// Makes progress without waiting.
    #[inline]
    pub fn progress(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.calls.pending() > 0 || self.turns.is_multiple_of(TURNS_TO_CALLS) {
            self.calls.progress();
            while let Some(done) = self.calls.next_completion() {
                self.operations.called(done.call, done.result);
            }
        }
        self.operations.progress(&mut self.calls);
    }

    /// Waits for requests in progress. READs are polled for, because they take no longer than a wake-up would.
    fn turn(&mut self) {
        self.progress();
        if self.operations.is_reading() || self.operations.has_completed() {
            if self.turns.is_multiple_of(TURNS_TO_YIELD) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        } else if self.calls.pending() > 0
            && let Ok(done) = self.calls.wait()
        {
            self.operations.called(done.call, done.result);
        }
    }
}
