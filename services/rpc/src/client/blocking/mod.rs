//! The blocking client: blocking calls, and windows of outstanding calls.

mod waiting;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use farcall_drive::IdlePolicy;
use farcall_link::Nic;
use farcall_shm::fork::Generation;
use farcall_verbs::{Clock, Nanos, WaitSet};

use super::erased::{AnyCaller, any_caller};
use super::preset_fallback::{PresetFallback, names_no_thread};
use super::session::Session;
use super::{CallOptions, ClientOptions, TURNS};
use crate::caller::{BatchCaller, CallContext, CallId, Caller, Completion};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};
use crate::paths::Path;
use crate::tune::{Decision, LinkProfile};
use crate::wire::Status;
use waiting::CHECK_PERIOD;

/// Pause between calls after which the bootstrap connection is checked before the next call.
const CHECK_AFTER_PAUSE: Duration = Duration::from_millis(5);

/// A connection to one server thread, including waiting, wake-ups and reconnection.
///
/// ```
/// # use farcall_rpc::{Call, Client, ClientOptions, Reply, Server};
/// # let nic = farcall_link::Nic::open(&farcall_softnic::SoftNic::new())?;
/// # let server = Server::builder().start(&nic, |_| |call: &Call<'_>, reply: &mut Reply<'_>| {
/// #     reply.extend_from_slice(call.payload());
/// #     Ok(())
/// # })?;
/// let mut client = Client::connect(&nic, server.address().to_string(), ClientOptions::default())?;
/// // A window of outstanding calls.
/// let first = client.submit(1, b"one")?;
/// let second = client.submit(1, b"two")?;
/// let done = client.wait()?;
/// assert_eq!((done.call, done.result?), (first, &b"one"[..]));
/// let done = client.wait()?;
/// assert_eq!((done.call, done.result?), (second, &b"two"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Client = ClientOf<dyn AnyCaller>;

/// A [`Client`] whose paths are fixed at compile time: there is no dynamic call on a message's path.
pub type StaticClient<P> = ClientOf<Caller<P>>;

/// A [`StaticClient`] that sends calls in batches: see [`BatchCaller`].
pub type BatchClient<P> = ClientOf<BatchCaller<P>>;

/// Common implementation of [`Client`] and [`StaticClient`], which differ in how they call the endpoint.
pub struct ClientOf<C: AnyCaller + ?Sized> {
    pub(super) now: Nanos,
    pub(super) idle_policy: IdlePolicy,
    pub(super) set: WaitSet,
    pub(super) next_check: Nanos,
    turns_to_clock: u32,
    /// Outcomes of submitted calls that completed while [`Client::call`] waited for its own call.
    other_outcomes: VecDeque<(CallId, Result<Vec<u8>, CallError>)>,
    lent: Vec<u8>,
    made_in: Generation,
    decision: Option<Decision>,
    pub(super) session: Session<C>,
}

impl<C: AnyCaller + ?Sized> fmt::Debug for ClientOf<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("pending", &self.session.caller.pending()).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server's bootstrap address. The options specify which verbs are used, or leave the choice to the
    /// rules.
    ///
    /// # Errors
    /// Returns an error if the plan cannot be run, the server cannot be reached or refuses, or resources cannot be
    /// allocated.
    pub fn connect(
        nic: &Nic,
        address: impl Into<String>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let address = address.into();
        let start = |options: ClientOptions| {
            let caller = any_caller(nic.clone(), options.config.clone())?;
            Self::start(caller, address.clone(), options)
        };
        let (mut client, decision) = PresetFallback::new(nic, &address, options)?.run(start)?;
        client.decision = decision;
        Ok(client)
    }
}

impl<P: Path> StaticClient<P> {
    /// Connects to a server's bootstrap address. The type determines the plan's paths and transport.
    ///
    /// # Errors
    /// Returns the errors of [`Client::connect`].
    pub fn connect(
        nic: &Nic,
        address: impl Into<String>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        Self::connect_by::<P>(nic, address, options, Caller::new)
    }
}

impl<P: Path> BatchClient<P> {
    /// Connects to a server's bootstrap address. The type determines the plan's paths and transport; batches are those
    /// of the options' configuration, or the default ones.
    ///
    /// # Errors
    /// Returns the errors of [`Client::connect`].
    pub fn connect(
        nic: &Nic,
        address: impl Into<String>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        Self::connect_by::<P>(nic, address, options, BatchCaller::new)
    }

    /// Returns the current number of calls of a batch.
    pub fn batch_size(&self) -> u16 {
        self.session.caller.batch_size()
    }
}

impl<C: AnyCaller> ClientOf<C> {
    fn connect_by<P: Path>(
        nic: &Nic,
        address: impl Into<String>,
        mut options: ClientOptions,
        caller: impl Fn(Nic, CallerConfig) -> farcall_verbs::Result<C>,
    ) -> Result<Self, ConnectError> {
        options.config.plan = P::plan(options.config.plan);
        options.config.plan.preset()?;
        let address = address.into();
        let start = |options: ClientOptions| {
            let caller = caller(nic.clone(), options.config.clone())?;
            Self::start(Box::new(caller), address.clone(), options)
        };
        match start(options.clone()) {
            // A server of an earlier version requires that clients name a thread.
            Err(error) if names_no_thread(&options, &error) => start(options.thread(0)),
            outcome => outcome,
        }
    }
}

impl<C: AnyCaller + ?Sized> ClientOf<C> {
    fn start(caller: Box<C>, address: String, options: ClientOptions) -> Result<Self, ConnectError> {
        let idle_policy = IdlePolicy::new(options.waiting());
        let mut session = Session::new(caller, address, options);
        session.connect(session.options.connect_timeout)?;
        session.init_profile();
        let now = session.clock.now();
        Ok(Self {
            now,
            idle_policy,
            set: WaitSet::default(),
            next_check: now + CHECK_PERIOD,
            turns_to_clock: TURNS,
            other_outcomes: VecDeque::new(),
            lent: Vec::new(),
            made_in: Generation::current(),
            decision: None,
            session,
        })
    }

    /// Makes a call and waits. The result is appended to `reply`. The deadline is the options' `call_timeout`.
    ///
    /// A call that the server certainly did not execute, because it drains or the connection broke before sending, is
    /// repeated automatically until the deadline.
    ///
    /// # Errors
    /// See [`CallError`]; [`CallError::executed`] indicates whether the call was executed.
    pub fn call(&mut self, method: u16, request: &[u8], reply: &mut Vec<u8>) -> Result<(), CallError> {
        self.call_with(method, request, reply, CallOptions::default())
    }

    /// Calls like [`Client::call`], with a timeout and a trace specified by the caller.
    ///
    /// # Errors
    /// Returns the errors of [`Client::call`].
    pub fn call_with(
        &mut self,
        method: u16,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions,
    ) -> Result<(), CallError> {
        self.begin()?;
        let context = self.context(options);
        loop {
            let id = self.submit_in_time(method, request, context)?;
            match self.wait_for(id, reply) {
                Err(CallError::Server { status: Status::GOING_AWAY, .. })
                    if self.session.options.reconnect => {}
                outcome => return outcome,
            }
            self.begin()?;
        }
    }

    /// Submits a call. If the window is full of cancelled calls without a response, waits for one of them.
    fn submit_in_time(
        &mut self,
        method: u16,
        request: &[u8],
        context: CallContext,
    ) -> Result<CallId, CallError> {
        loop {
            match self.session.caller.submit(method, request, context, self.now) {
                Err(CallError::WindowFull { .. })
                    if self.session.caller.pending() == 0 && !self.session.caller.has_completion() => {}
                outcome => return outcome,
            }
            if context.deadline.is_some_and(|deadline| self.now >= deadline) {
                return Err(CallError::DeadlineExceeded);
            }
            self.flush();
            self.turn_until(context.deadline);
        }
    }

    fn wait_for(&mut self, id: CallId, reply: &mut Vec<u8>) -> Result<(), CallError> {
        self.flush();
        loop {
            while let Some(done) = self.session.caller.next_completion() {
                if done.call == id {
                    return done.result.map(|result| reply.extend_from_slice(result));
                }
                self.other_outcomes.push_back((done.call, done.result.map(<[u8]>::to_vec)));
            }
            self.turn_until(None);
        }
    }

    /// Begins a call without waiting for it.
    ///
    /// # Errors
    /// Returns an error if the window is full, or the request too large. Cancelled calls occupy the window until the
    /// server has responded to them.
    #[inline]
    pub fn submit(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        self.submit_with(method, request, CallOptions::default())
    }

    /// Submits like [`Client::submit`], with a timeout and a trace specified by the caller.
    ///
    /// # Errors
    /// Returns the errors of [`Client::submit`].
    pub fn submit_with(
        &mut self,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<CallId, CallError> {
        self.begin()?;
        self.session.caller.submit(method, request, self.context(options), self.now)
    }

    /// Returns the context of a call that begins now.
    #[inline]
    fn context(&self, options: CallOptions) -> CallContext {
        options.context(self.now, self.session.options.call_timeout)
    }

    /// Prepares a call. After a pause the server may have exited: a call that is not sent to an exited server has a
    /// known outcome.
    ///
    /// # Errors
    /// Returns an error if the client was inherited by a fork.
    #[inline]
    fn begin(&mut self) -> Result<(), CallError> {
        if self.made_in.is_inherited() {
            return Err(CallError::NotSent(Broken::Forked));
        }
        let now = self.session.clock.now();
        if now.since(self.now) > CHECK_AFTER_PAUSE {
            self.check_bootstrap();
        }
        self.now = now;
        Ok(())
    }

    /// In a forked child, ends all calls, which have no outcome there. Returns whether this process is a forked child.
    #[inline]
    pub(super) fn ends_in_child(&mut self) -> bool {
        let is_inherited = self.made_in.is_inherited();
        if is_inherited {
            self.session.caller.fail_all(&Broken::Forked);
        }
        is_inherited
    }

    /// Returns the next completed call, if there is one. Drives the connection like [`Client::progress`], without
    /// waiting.
    pub fn poll(&mut self) -> Option<Completion<'_>> {
        if self.other_outcomes.is_empty() && !self.session.caller.has_completion() {
            self.progress();
        }
        self.next_completion()
    }

    /// Makes one driver iteration. Never waits for results. Without a connection, makes an attempt to connect when one
    /// is due.
    #[inline]
    pub fn progress(&mut self) {
        self.session.caller.turns(1, self.now);
        self.turns_to_clock -= 1;
        if self.turns_to_clock > 0 {
            return;
        }
        self.turns_to_clock = TURNS;
        if self.ends_in_child() {
            return;
        }
        self.now = self.session.clock.now();
        if !self.session.caller.is_open() {
            self.try_reconnect();
        } else {
            self.check_if_due();
        }
    }

    /// Sends the open batch, if this client sends batches.
    #[inline]
    pub fn flush(&mut self) {
        self.session.caller.flush(self.now);
    }

    /// Waits for the next submitted call to complete. The open batch is sent first, because no further calls can be
    /// submitted during the wait.
    ///
    /// # Errors
    /// Returns an error if no call is outstanding.
    pub fn wait(&mut self) -> Result<Completion<'_>, NothingOutstanding> {
        self.flush();
        while self.other_outcomes.is_empty() && !self.session.caller.has_completion() {
            if self.session.caller.pending() == 0 {
                return Err(NothingOutstanding);
            }
            self.turn_until(None);
        }
        self.next_completion().ok_or(NothingOutstanding)
    }

    /// Returns the next submitted call that is known to have completed.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        if let Some((call, result)) = self.other_outcomes.pop_front() {
            let result = result.map(|bytes| {
                self.lent = bytes;
                &self.lent[..]
            });
            return Some(Completion { call, result });
        }
        if self.session.caller.has_completion() {
            // The server has responded, so it exists.
            self.next_check = self.now + CHECK_PERIOD;
        }
        self.session.caller.next_completion()
    }

    /// Cancels a submitted call: its outcome is not returned. Returns whether the call certainly was not and will not
    /// be executed.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.session.caller.cancel(call)
    }

    /// Returns how many calls may be submitted now.
    pub fn available(&self) -> usize {
        self.session.caller.available()
    }

    /// Returns the number of submitted calls without an outcome.
    pub fn pending(&self) -> usize {
        self.session.caller.pending()
    }

    /// Returns whether there is a connection, as far as is known.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.session.caller.is_open()
    }

    /// Returns the number of threads (partitions) of the server; a client is connected to one of them.
    pub fn server_threads(&self) -> u16 {
        self.session.caller.last_welcome().map_or(0, |welcome| welcome.threads)
    }

    /// Returns the server's incarnation, which differs after each start.
    pub fn server_incarnation(&self) -> u64 {
        self.session.caller.last_welcome().map_or(0, |welcome| welcome.incarnation)
    }

    /// Returns which preset the library chose when the client connected, and why; `None` if the options specified it.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        self.session.caller.counters()
    }

    /// Returns the current R and F.
    pub fn tuning(&self) -> (u32, u32) {
        self.session.caller.tuning()
    }

    /// Measures READs and WRITEs on the connection for at least `at_least`. Returns `None` without a connection, or
    /// with calls outstanding.
    pub fn measure(&mut self, at_least: Duration) -> Option<LinkProfile> {
        let clock = self.session.clock;
        self.session.caller.measure(at_least, &clock)
    }
}

impl<C: AnyCaller + ?Sized> Drop for ClientOf<C> {
    fn drop(&mut self) {
        if !self.made_in.is_inherited() {
            self.session.close();
        }
    }
}

/// [`Client::wait`] was called with no call outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no call is outstanding: submit one first")]
pub struct NothingOutstanding;
