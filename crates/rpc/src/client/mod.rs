//! The client that users hold: blocking calls, windows of outstanding calls, reconnection.

#[cfg(feature = "tokio")]
mod asynchronous;
mod core;
mod lifeline;
mod options;

use std::collections::VecDeque;
use std::time::Duration;

use farcall_drive::{Pace, Pacer, sleep_on};
use farcall_link::{Backoff, Nic, ResponsePath};
use farcall_verbs::{Clock, MonotonicClock, Nanos, Next, Provider, WaitSet};

use crate::caller::{CallId, CallOptions, Caller, Completion, FetchThenReply, ServerReply};
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};
use crate::wire::Status;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub(crate) use core::Core;
pub(crate) use lifeline::{Lifeline, Said};
pub use options::ClientOptions;

/// Turns of the endpoint between two decisions on waiting.
const TURNS: u32 = 16;
/// Idle batches of turns between two looks at the lifeline: a look is a system call.
const BATCHES_PER_LOOK: u32 = 512;

/// A pause between calls after which the lifeline is looked at first.
const LOOK_AFTER_PAUSE: Duration = Duration::from_millis(5);

/// A connection to one server thread, with everything around it: waits, wakes, reconnects.
///
/// ```
/// # use farcall_rpc::{Call, Client, ClientOptions, Reply, Server};
/// # let provider = farcall_softnic::SoftNic::new();
/// # let server = Server::builder().start(&provider, |_| |call: &Call<'_>, reply: &mut Reply<'_>| {
/// #     reply.extend_from_slice(call.payload());
/// #     Ok(())
/// # })?;
/// let mut client = Client::connect(&provider, server.address().to_string(), ClientOptions::default())?;
/// // A window of outstanding calls.
/// let first = client.submit(1, b"one")?;
/// let second = client.submit(1, b"two")?;
/// let done = client.wait()?;
/// assert_eq!((done.call, done.result?), (first, &b"one"[..]));
/// let done = client.wait()?;
/// assert_eq!((done.call, done.result?), (second, &b"two"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Client {
    core: Box<dyn Core>,
    lifeline: Option<Lifeline>,
    address: String,
    options: ClientOptions,
    clock: MonotonicClock,
    now: Nanos,
    pacer: Pacer,
    set: WaitSet,
    backoff: Backoff,
    batches_to_look: u32,
    /// Outcomes of submitted calls that ended while [`Client::call`] waited for its own.
    kept: VecDeque<(CallId, Result<Vec<u8>, CallError>)>,
    lent: Vec<u8>,
}

/// Makes the caller of a plan's response path.
pub(crate) fn make_core(nic: Nic, options: &ClientOptions) -> Result<Box<dyn Core>, ConnectError> {
    let config = options.config.clone();
    config.plan.preset()?;
    Ok(match config.plan.response {
        ResponsePath::Write => Box::new(Caller::<ServerReply>::new(nic, config)?),
        // The preset table has no other; a plan outside of it was refused above.
        _ => Box::new(Caller::<FetchThenReply>::new(nic, config)?),
    })
}

impl Client {
    /// Connects to a server's bootstrap address.
    ///
    /// # Errors
    /// If the plan does not run, the server cannot be reached or refuses, or resources cannot be had.
    pub fn connect(
        provider: &dyn Provider,
        address: impl Into<String>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let nic = Nic::open(provider)?;
        let clock = MonotonicClock::new();
        let mut client = Self {
            core: make_core(nic, &options)?,
            lifeline: None,
            address: address.into(),
            now: clock.now(),
            pacer: Pacer::new(options.waiting()),
            backoff: options.backoff(),
            options,
            clock,
            set: WaitSet::default(),
            batches_to_look: BATCHES_PER_LOOK,
            kept: VecDeque::new(),
            lent: Vec::new(),
        };
        client.connect_once(client.options.connect_timeout)?;
        if client.options.probe {
            let clock = client.clock;
            client.core.probe(&clock);
        }
        Ok(client)
    }

    /// Calls and waits. The result is appended to `reply`. The deadline is the options' `call_timeout`.
    ///
    /// A call that the server certainly did not execute, because it drains or the connection broke before sending, is made
    /// again by itself while there is time.
    ///
    /// # Errors
    /// See [`CallError`]; [`CallError::executed`] says what is known about the call.
    pub fn call(&mut self, method: u16, request: &[u8], reply: &mut Vec<u8>) -> Result<(), CallError> {
        let now = self.clock.now();
        let options =
            CallOptions { deadline: self.options.call_timeout.map(|timeout| now + timeout), trace_id: 0 };
        self.call_with(method, request, reply, options)
    }

    /// As [`Client::call`], with a deadline (by [`Client::now`]) and a trace of the caller's own.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_with(
        &mut self,
        method: u16,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions,
    ) -> Result<(), CallError> {
        loop {
            self.begin();
            let id = self.core.submit(method, request, options, self.now)?;
            match self.wait_for(id, reply) {
                Err(CallError::Server { status: Status::GOING_AWAY, .. }) if self.options.reconnect => {}
                outcome => return outcome,
            }
        }
    }

    fn wait_for(&mut self, id: CallId, reply: &mut Vec<u8>) -> Result<(), CallError> {
        loop {
            while let Some(done) = self.core.next_completion() {
                if done.call == id {
                    return done.result.map(|result| reply.extend_from_slice(result));
                }
                self.kept.push_back((done.call, done.result.map(<[u8]>::to_vec)));
            }
            self.turn();
        }
    }

    /// Begins a call without waiting for it.
    ///
    /// # Errors
    /// If the window is full, or the request too large.
    pub fn submit(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        let now = self.clock.now();
        let deadline = self.options.call_timeout.map(|timeout| now + timeout);
        self.submit_with(method, request, CallOptions { deadline, trace_id: 0 })
    }

    /// As [`Client::submit`], with a deadline and a trace of the caller's own.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn submit_with(
        &mut self,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<CallId, CallError> {
        self.begin();
        self.core.submit(method, request, options, self.now)
    }

    /// Before a call. After a pause the server may have gone: a call that is not sent to nobody has a known outcome.
    #[inline]
    fn begin(&mut self) {
        let now = self.clock.now();
        if now.since(self.now) > LOOK_AFTER_PAUSE {
            self.look();
        }
        self.now = now;
    }

    /// The next submitted call that ended, if there is one now. Makes some turns, never waits (but for a reconnect).
    pub fn poll(&mut self) -> Option<Completion<'_>> {
        if self.kept.is_empty() && !self.core.has_completion() {
            self.now = self.clock.now();
            self.core.turns(1, self.now);
            if !self.core.is_open() {
                self.reconnect();
            }
        }
        self.take_completion()
    }

    /// Waits for the next submitted call to end.
    ///
    /// # Errors
    /// If none is outstanding.
    pub fn wait(&mut self) -> Result<Completion<'_>, NothingOutstanding> {
        while self.kept.is_empty() && !self.core.has_completion() {
            if self.core.pending() == 0 {
                return Err(NothingOutstanding);
            }
            self.turn();
        }
        self.take_completion().ok_or(NothingOutstanding)
    }

    fn take_completion(&mut self) -> Option<Completion<'_>> {
        if let Some((call, result)) = self.kept.pop_front() {
            let result = result.map(|bytes| {
                self.lent = bytes;
                &self.lent[..]
            });
            return Some(Completion { call, result });
        }
        self.core.next_completion()
    }

    /// Gives a submitted call up: its outcome will not be told. Returns whether it certainly was not and will not be
    /// executed.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.core.cancel(call)
    }

    /// How many calls may be submitted now.
    pub fn available(&self) -> usize {
        self.core.available()
    }

    /// How many submitted calls have no outcome yet.
    pub fn pending(&self) -> usize {
        self.core.pending()
    }

    /// How many threads (partitions) the server has; a client talks to one of them.
    pub fn server_threads(&self) -> u16 {
        self.core.last_welcome().map_or(0, |welcome| welcome.threads)
    }

    /// The server's incarnation: another number after each start.
    pub fn server_incarnation(&self) -> u64 {
        self.core.last_welcome().map_or(0, |welcome| welcome.incarnation)
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        self.core.counters()
    }

    /// R and F as they are now.
    pub fn tuning(&self) -> (u32, u32) {
        self.core.tuning()
    }

    /// The time by this client's clock, for deadlines.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Some turns; waits as the plan says if there is nothing.
    fn turn(&mut self) {
        let next = self.core.turns(TURNS, self.now);
        if self.core.has_completion() {
            self.pacer.worked();
            return;
        }
        self.now = self.clock.now();
        if !self.core.is_open() {
            self.reconnect();
            return;
        }
        match next {
            Next::Again => self.pacer.worked(),
            Next::Idle { .. } => match self.pacer.idle() {
                Pace::Poll => self.look_sometimes(),
                Pace::Yield => {
                    std::thread::yield_now();
                    self.look_sometimes();
                }
                Pace::Sleep => self.sleep(),
            },
        }
    }

    fn look_sometimes(&mut self) {
        self.batches_to_look -= 1;
        if self.batches_to_look == 0 {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        self.batches_to_look = BATCHES_PER_LOOK;
        match self.lifeline.as_mut().map(Lifeline::look) {
            None | Some(Said::Nothing) => {}
            Some(Said::GoingAway) => self.core.set_going_away(),
            Some(Said::Gone(why)) => self.core.break_off(why),
        }
    }

    #[cold]
    fn sleep(&mut self) {
        if self.core.arm().is_err() {
            return;
        }
        self.now = self.clock.now();
        let Next::Idle { until } = self.core.turns(1, self.now) else { return };
        self.set.clear();
        self.core.wait_set(&mut self.set);
        if let Some(lifeline) = &self.lifeline {
            self.set.insert(lifeline.fd());
        }
        // A system that cannot sleep on descriptors makes us poll; nothing is lost.
        let _ = sleep_on(self.set.fds(), until.map(|until| until.since(self.now)));
        self.pacer.woke();
        self.now = self.clock.now();
        self.look();
    }

    fn connect_once(&mut self, timeout: Duration) -> Result<(), ConnectError> {
        let hello = self.core.hello()?;
        let (lifeline, welcome) = Lifeline::open(&self.address, &hello, timeout)?;
        self.now = self.clock.now();
        self.core.welcome(welcome, self.now)?;
        self.lifeline = Some(lifeline);
        self.backoff.reset();
        Ok(())
    }

    /// Connects again, with growing pauses, until a call ends (its deadline passed) or the time for it is over; then all
    /// calls end.
    #[cold]
    fn reconnect(&mut self) {
        self.lifeline = None;
        let why = self.core.broken().cloned().unwrap_or(Broken::Closed);
        let until = self.clock.now() + self.options.reconnect_timeout;
        while self.options.reconnect {
            self.now = self.clock.now();
            self.core.turns(1, self.now);
            if self.core.has_completion() {
                return;
            }
            let left = until.since(self.now);
            if left.is_zero() {
                break;
            }
            if self.connect_once(self.options.connect_timeout.min(left)).is_ok() {
                return;
            }
            std::thread::sleep(self.backoff.next_delay().min(left));
        }
        self.core.fail_all(&why);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(lifeline) = self.lifeline.as_mut() {
            lifeline.say_goodbye();
        }
        self.core.break_off(Broken::Closed);
    }
}

/// [`Client::wait`] was called with no call outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no call is outstanding: submit one first")]
pub struct NothingOutstanding;
