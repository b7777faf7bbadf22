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

use crate::caller::{CallId, CallOptions, Caller, Completion, FetchThenReply, Path, ServerReply};
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};
use crate::wire::Status;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use core::Core;
pub(crate) use lifeline::{Lifeline, Said};
pub use options::ClientOptions;

/// Turns of the endpoint between two decisions on waiting.
const TURNS: u32 = 16;
/// Without results, the lifeline is looked at so often: a look is a system call.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// A pause between calls after which the lifeline is looked at first.
const LOOK_AFTER_PAUSE: Duration = Duration::from_millis(5);
/// An attempt to connect may outlast the earliest deadline by so much: a shorter one could never succeed.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(10);

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
pub type Client = ClientOf<dyn Core>;

/// A [`Client`] whose response path is fixed when the program is compiled: no dynamic call on the way of a message.
pub type StaticClient<P> = ClientOf<Caller<P>>;

/// What [`Client`] and [`StaticClient`] have in common: all but the way to the endpoint.
pub struct ClientOf<C: Core + ?Sized> {
    lifeline: Option<Lifeline>,
    address: String,
    options: ClientOptions,
    clock: MonotonicClock,
    now: Nanos,
    pacer: Pacer,
    set: WaitSet,
    backoff: Backoff,
    outage: Option<Outage>,
    next_look: Nanos,
    turns_to_clock: u32,
    /// Outcomes of submitted calls that ended while [`Client::call`] waited for its own.
    kept: VecDeque<(CallId, Result<Vec<u8>, CallError>)>,
    lent: Vec<u8>,
    core: Box<C>,
}

/// The time without a connection.
#[derive(Clone, Copy)]
struct Outage {
    give_up_at: Nanos,
    retry_at: Nanos,
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
        let core = make_core(Nic::open(provider)?, &options)?;
        Self::start(core, address.into(), options)
    }
}

impl<P: Path> StaticClient<P> {
    /// Connects to a server's bootstrap address. The plan's response path is the type's.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(
        provider: &dyn Provider,
        address: impl Into<String>,
        mut options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        options.config.plan.response = P::AXIS;
        options.config.plan.preset()?;
        let core = Caller::<P>::new(Nic::open(provider)?, options.config.clone())?;
        Self::start(Box::new(core), address.into(), options)
    }
}

impl<C: Core + ?Sized> ClientOf<C> {
    fn start(core: Box<C>, address: String, options: ClientOptions) -> Result<Self, ConnectError> {
        let clock = MonotonicClock::new();
        let mut client = Self {
            core,
            lifeline: None,
            address,
            now: clock.now(),
            pacer: Pacer::new(options.waiting()),
            backoff: options.backoff(),
            outage: None,
            options,
            clock,
            set: WaitSet::default(),
            next_look: clock.now() + LOOK_PERIOD,
            turns_to_clock: TURNS,
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
        self.begin();
        let options = self.usual_options();
        self.call_begun(method, request, reply, options)
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
        self.begin();
        self.call_begun(method, request, reply, options)
    }

    fn call_begun(
        &mut self,
        method: u16,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions,
    ) -> Result<(), CallError> {
        loop {
            let id = self.submit_in_time(method, request, options)?;
            match self.wait_for(id, reply) {
                Err(CallError::Server { status: Status::GOING_AWAY, .. }) if self.options.reconnect => {}
                outcome => return outcome,
            }
            self.begin();
        }
    }

    /// Submits; if the window is full of calls that were given up and have not been answered yet, waits for one of those.
    fn submit_in_time(
        &mut self,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<CallId, CallError> {
        loop {
            match self.core.submit(method, request, options, self.now) {
                Err(CallError::WindowFull { .. })
                    if self.core.pending() == 0 && !self.core.has_completion() => {}
                outcome => return outcome,
            }
            if options.deadline.is_some_and(|deadline| self.now >= deadline) {
                return Err(CallError::DeadlineExceeded);
            }
            self.turn_until(options.deadline);
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
    /// If the window is full, or the request too large. Calls that were given up keep their place until the server has
    /// answered them.
    #[inline]
    pub fn submit(&mut self, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        self.begin();
        let options = self.usual_options();
        self.core.submit(method, request, options, self.now)
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

    #[inline]
    fn usual_options(&self) -> CallOptions {
        let deadline = self.options.call_timeout.map(|timeout| self.now + timeout);
        CallOptions { deadline, trace_id: 0 }
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

    /// The next submitted call that ended, if there is one now. Does what can be done without waiting, as
    /// [`Client::progress`].
    pub fn poll(&mut self) -> Option<Completion<'_>> {
        if self.kept.is_empty() && !self.core.has_completion() {
            self.progress();
        }
        self.next_completion()
    }

    /// Makes one turn. Never waits for results; without a connection it makes an attempt to connect whenever the time for
    /// one has come.
    #[inline]
    pub fn progress(&mut self) {
        self.core.turns(1, self.now);
        self.turns_to_clock -= 1;
        if self.turns_to_clock > 0 {
            return;
        }
        self.turns_to_clock = TURNS;
        self.now = self.clock.now();
        if !self.core.is_open() {
            self.mend();
        } else {
            self.look_if_due();
        }
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
        self.next_completion().ok_or(NothingOutstanding)
    }

    /// The next submitted call that is known to have ended.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion<'_>> {
        if let Some((call, result)) = self.kept.pop_front() {
            let result = result.map(|bytes| {
                self.lent = bytes;
                &self.lent[..]
            });
            return Some(Completion { call, result });
        }
        if self.core.has_completion() {
            // Whoever answers is there.
            self.next_look = self.now + LOOK_PERIOD;
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

    /// Whether there is a connection, as far as is known.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.core.is_open()
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
        self.turn_until(None);
    }

    /// As `turn`; does not wait beyond `deadline`.
    fn turn_until(&mut self, deadline: Option<Nanos>) {
        let next = self.core.turns(TURNS, self.now);
        if self.core.has_completion() {
            self.pacer.worked();
            self.next_look = self.now + LOOK_PERIOD;
            return;
        }
        self.now = self.clock.now();
        if !self.core.is_open() {
            if let Some(pause) = self.mend() {
                std::thread::sleep(pause);
            }
            return;
        }
        match next {
            Next::Again => self.pacer.worked(),
            Next::Idle { .. } => match self.pacer.idle() {
                Pace::Poll => self.look_if_due(),
                Pace::Yield => {
                    std::thread::yield_now();
                    self.look_if_due();
                }
                Pace::Sleep => self.sleep_until(deadline),
            },
        }
    }

    #[inline]
    fn look_if_due(&mut self) {
        if self.now >= self.next_look {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        self.next_look = self.now + LOOK_PERIOD;
        match self.lifeline.as_mut().map(Lifeline::look) {
            None | Some(Said::Nothing) => {}
            Some(Said::GoingAway) => self.core.set_going_away(),
            Some(Said::Gone(why)) => self.core.break_off(why),
        }
    }

    #[cold]
    fn sleep_until(&mut self, deadline: Option<Nanos>) {
        if self.core.arm().is_err() {
            return;
        }
        self.now = self.clock.now();
        let Next::Idle { until } = self.core.turns(1, self.now) else { return };
        if self.core.pending() == 0 && self.core.available() > 0 {
            // What was waited for is a place, of calls that were given up: that they are answered makes no event of ours.
            return;
        }
        let until = Nanos::earlier(until, deadline);
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
        self.outage = None;
        self.backoff.reset();
        Ok(())
    }

    /// Without a connection: ends the calls whose deadline has passed, and makes an attempt to connect if the time for one
    /// has come. When the time for all attempts is over, all calls end. Returns how long there is nothing to do.
    #[cold]
    fn mend(&mut self) -> Option<Duration> {
        self.lifeline = None;
        self.core.turns(1, self.now);
        let begun = Outage { give_up_at: self.now + self.options.reconnect_timeout, retry_at: self.now };
        let outage = *self.outage.get_or_insert(begun);
        if !self.options.reconnect || self.now >= outage.give_up_at {
            self.outage = None;
            let why = self.core.broken().cloned().unwrap_or(Broken::Closed);
            self.core.fail_all(&why);
            return None;
        }
        if self.core.has_completion() {
            return None;
        }
        let until = Nanos::earlier(Some(outage.give_up_at), self.core.earliest_deadline());
        let left = until.map_or(Duration::ZERO, |until| until.since(self.now));
        if self.now < outage.retry_at {
            return Some(outage.retry_at.since(self.now).min(left));
        }
        let timeout = self.options.connect_timeout.min(left.max(CONNECT_TIMEOUT_MIN));
        if self.connect_once(timeout).is_err() {
            self.now = self.clock.now();
            self.outage = Some(Outage { retry_at: self.now + self.backoff.next_delay(), ..outage });
        }
        None
    }
}

impl<C: Core + ?Sized> Drop for ClientOf<C> {
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
