//! Sockets whose calls wait, or say that they would have to.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::RawFd;
use std::time::Duration;

use farcall_drive::{Waiter, arm_then_look, sleep_on};
use farcall_link::{Nic, Waiting};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Next, WaitSet};

use super::StreamOptions;
use super::door::{Asked, Door};
use super::readiness::Readiness;
use crate::carried::Carried;
use crate::error::{OpenError, StreamError};
use crate::stream::{Counters, Stream, StreamPath};

/// A byte stream, as [`std::net::TcpStream`] is one. Its calls run it; nobody else does.
///
/// What a write has accepted arrives without further calls. Dropping it ends its stream, and waits, as long as its
/// options say, until everything has arrived.
pub struct StreamSocket {
    carried: Carried<TcpStream>,
    peer: SocketAddr,
    runner: Runner,
    options: StreamOptions,
    is_nonblocking: bool,
    /// The last call said `WouldBlock`.
    is_waiting: bool,
    /// Whoever waits for it arms it when he sleeps.
    is_armed_by_set: bool,
    timeouts: Timeouts,
    /// Made when it is asked for.
    readiness: Option<Readiness>,
}

#[derive(Clone, Copy, Default)]
struct Timeouts {
    read: Option<Duration>,
    write: Option<Duration>,
}

/// Idle turns between two looks at the clock, which costs as much as a turn.
const TURNS_PER_CLOCK: u32 = 16;

/// Runs endpoints in the calling thread.
struct Runner {
    clock: MonotonicClock,
    waiter: Waiter,
    set: WaitSet,
}

impl Runner {
    fn new(waiter: Waiter) -> Self {
        Self { clock: MonotonicClock::new(), waiter, set: WaitSet::default() }
    }

    fn of(options: &StreamOptions) -> Self {
        Self::new(Waiter::new(options.waiting, options.pollers.clone()))
    }

    /// Runs the endpoint until `done` says something, or until there is nothing to do for so long.
    fn run<E: Endpoint, T>(
        &mut self,
        endpoint: &mut E,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut E) -> Option<T>,
    ) -> io::Result<T> {
        let (mut deadline, mut now, mut turns) = (None, Nanos(0), 0);
        loop {
            if let Some(done) = done(endpoint) {
                self.waiter.worked();
                return Ok(done);
            }
            if turns == 0 {
                now = self.clock.now();
            }
            turns = (turns + 1) % TURNS_PER_CLOCK;
            if endpoint.progress(now) == Next::Again {
                self.waiter.worked();
                continue;
            }
            if let Some(timeout) = timeout {
                let deadline = *deadline.get_or_insert_with(|| now + timeout);
                if now >= deadline {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            if self.waiter.was_idle(endpoint.looks()) {
                now = self.clock.now();
                let next = self.waiter.arm_then_look(endpoint, now);
                // No event follows what the last look has done.
                if let Some(done) = done(endpoint) {
                    self.waiter.is_awake();
                    return Ok(done);
                }
                match next {
                    Next::Again => self.waiter.worked(),
                    Next::Idle { until } => {
                        let until = Nanos::earlier(until, deadline);
                        self.sleep(endpoint, until.map(|until| until.since(now)))?;
                    }
                }
                turns = 0;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Sleeps on the descriptors of an armed endpoint.
    fn sleep<E: Endpoint>(&mut self, endpoint: &E, timeout: Option<Duration>) -> io::Result<()> {
        self.set.clear();
        self.waiter.wait_set(endpoint, &mut self.set);
        sleep_on(self.set.fds(), timeout)?;
        self.waiter.woke();
        Ok(())
    }

    /// If nothing can be done now: what time it is, and when there is at the latest; the endpoint wakes its descriptors
    /// when there is before.
    fn idle_until<E: Endpoint>(&mut self, endpoint: &mut E) -> Option<(Nanos, Option<Nanos>)> {
        let now = self.clock.now();
        self.waiter.is_awake();
        match endpoint.progress(now) {
            Next::Again => None,
            Next::Idle { .. } => match self.waiter.arm_then_look(endpoint, now) {
                Next::Again => None,
                Next::Idle { until } => Some((now, until)),
            },
        }
    }
}

impl StreamSocket {
    /// Connects to a [`StreamListener`] at an address.
    ///
    /// # Errors
    /// If nobody listens there, it refuses, or the device has no room for another stream.
    pub fn connect(
        nic: &Nic,
        address: impl ToSocketAddrs,
        options: StreamOptions,
    ) -> Result<Self, OpenError> {
        let mut name = String::from("the address");
        let socket = dial(address, options.connect_timeout, &mut name);
        let socket = socket.map_err(|source| OpenError::Unreachable { address: name.clone(), source })?;
        let unreachable = |source| OpenError::Unreachable { address: name.clone(), source };
        let peer = socket.peer_addr().map_err(unreachable)?;
        let mut carried = Carried::open(nic, options.config, socket)?;
        let mut runner = Runner::of(&options);
        let settled = runner
            .run(&mut carried, Some(options.connect_timeout), |carried| carried.is_settled().then_some(()));
        settled.map_err(unreachable)?;
        match carried.take_failure() {
            Some(OpenError::Unreachable { source, .. }) => Err(unreachable(source)),
            Some(failure) => Err(failure),
            None => Ok(Self::new(carried, peer, runner, options)),
        }
    }

    fn new(carried: Carried<TcpStream>, peer: SocketAddr, runner: Runner, options: StreamOptions) -> Self {
        let timeouts = Timeouts::default();
        Self {
            carried,
            peer,
            runner,
            options,
            is_nonblocking: false,
            is_waiting: false,
            is_armed_by_set: false,
            timeouts,
            readiness: None,
        }
    }

    /// Where the other end is.
    pub const fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// What carries the bytes.
    pub const fn path(&self) -> StreamPath {
        self.carried.path()
    }

    /// How long a read or a write may wait; `None`: for ever.
    pub fn set_timeouts(&mut self, read: Option<Duration>, write: Option<Duration>) {
        self.timeouts = Timeouts { read, write };
    }

    /// Whether calls say `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// If the socket was not made [`StreamOptions::pollable`], unless its way of waiting never sleeps: then it has no
    /// descriptor, and its owner calls again and again.
    pub fn set_nonblocking(&mut self, nonblocking: bool) -> io::Result<()> {
        if self.options.waiting != Waiting::Busy {
            self.check_pollable()?;
        }
        self.is_nonblocking = nonblocking;
        Ok(())
    }

    fn check_pollable(&self) -> io::Result<()> {
        if self.options.config.may_poll {
            let why =
                "the socket was made to be waited on in its calls; make it with StreamOptions::pollable";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        Ok(())
    }

    /// A descriptor for poll and epoll, level- or edge-triggered, that is readable when reading or writing may go on:
    /// from the time that a call said `WouldBlock` until the next one does. It belongs to the socket.
    ///
    /// # Errors
    /// If the socket was not made [`StreamOptions::pollable`], or the system has no descriptor left.
    pub fn pollable_fd(&mut self) -> io::Result<RawFd> {
        self.check_pollable()?;
        if self.readiness.is_none() {
            self.runner.set.clear();
            self.runner.waiter.wait_set(&self.carried, &mut self.runner.set);
            let mut readiness = Readiness::new()?;
            readiness.follow(&self.runner.set)?;
            self.readiness = Some(readiness);
            // What comes from now on makes it readable. What came before may be what a call said it would wait for.
            if !self.arm()
                && let Some(readiness) = &mut self.readiness
            {
                readiness.wake_at(Some(Duration::ZERO));
            }
        }
        Ok(self.readiness.as_ref().map_or(-1, Readiness::fd))
    }

    /// Whether nothing can be done now: the descriptor becomes readable when there is.
    pub(super) fn arm(&mut self) -> bool {
        let Some((now, until)) = self.runner.idle_until(&mut self.carried) else { return false };
        if let Some(readiness) = &mut self.readiness {
            readiness.wake_at(until.map(|until| until.since(now)));
        }
        true
    }

    /// Ends what this end writes; the peer reads what is on its way, then the end. Reading goes on.
    ///
    /// # Errors
    /// If the stream broke.
    pub fn finish(&mut self) -> io::Result<()> {
        self.operate(None, |stream| {
            stream.finish();
            Ok(())
        })
    }

    /// Gives the stream up: the peer reads what had arrived, then an error.
    pub fn reset(mut self) {
        if let Some(stream) = self.carried.stream() {
            stream.reset();
        }
    }

    /// Ends what this end writes and waits until everything has arrived at the peer.
    ///
    /// # Errors
    /// If the stream broke, or that takes longer than `timeout`.
    pub fn close(mut self, timeout: Duration) -> io::Result<()> {
        self.finish()?;
        self.runner.run(&mut self.carried, Some(timeout), |carried| carried.is_over().then_some(()))?;
        match self.carried.stream().and_then(|stream| stream.broken().cloned()) {
            Some(broken) => Err(StreamError::Reset(broken).into()),
            None => Ok(()),
        }
    }

    /// What happened so far.
    pub fn counters(&mut self) -> Counters {
        self.carried.stream().map(|stream| stream.counters()).unwrap_or_default()
    }

    /// Whether there are bytes that were not seen yet: one load.
    #[inline]
    pub(super) fn has_news(&mut self) -> bool {
        self.carried.stream().is_some_and(|stream| stream.has_news())
    }

    /// Whether the last call said `WouldBlock`, so that the descriptor tells when another may go on.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Whoever waits for it calls [`StreamSocket::arm`] from now on, when he sleeps.
    pub(super) fn is_taken_by_set(&mut self) {
        self.is_armed_by_set = true;
        self.is_waiting = false;
    }

    /// Whether a look at everything finds something.
    pub(super) fn finds_something(&mut self) -> bool {
        self.runner.waiter.is_awake();
        self.carried.progress(self.runner.clock.now()) == Next::Again
    }

    /// Does something with the stream, as soon as it does not answer `WouldBlock`.
    ///
    /// # Errors
    /// Those of `operation`; `WouldBlock` if the socket does not wait; `TimedOut`.
    #[inline]
    pub fn operate<T>(
        &mut self,
        timeout: Option<Duration>,
        mut operation: impl FnMut(&mut Stream) -> Result<T, StreamError>,
    ) -> io::Result<T> {
        let mut attempt = |carried: &mut Carried<TcpStream>| match carried.stream().map(&mut operation) {
            Some(Err(StreamError::WouldBlock)) => None,
            Some(result) => Some(result),
            None => Some(Err(StreamError::BrokenPipe)),
        };
        if self.is_nonblocking {
            self.is_waiting = false;
            loop {
                if let Some(result) = attempt(&mut self.carried) {
                    return Ok(result?);
                }
                let is_armed_later = self.is_armed_by_set || self.options.waiting == Waiting::Busy;
                if if is_armed_later { !self.finds_something() } else { self.arm() } {
                    self.is_waiting = true;
                    return Err(ErrorKind::WouldBlock.into());
                }
            }
        }
        Ok(self.runner.run(&mut self.carried, timeout, attempt)??)
    }
}

impl Read for StreamSocket {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.operate(self.timeouts.read, |stream| stream.read(bytes))
    }
}

impl Write for StreamSocket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.operate(self.timeouts.write, |stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        let Some(stream) = self.carried.stream() else { return };
        if stream.broken().is_some() {
            return;
        }
        stream.finish();
        let linger = Some(self.options.linger);
        // What does not arrive in time is lost, and the peer told so; over TCP the system goes on with it.
        let _ = self.runner.run(&mut self.carried, linger, |carried| carried.is_over().then_some(()));
    }
}

fn dial(address: impl ToSocketAddrs, timeout: Duration, name: &mut String) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        *name = address.to_string();
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Accepts streams, as [`std::net::TcpListener`] does connections. Nothing waits for a single client.
pub struct StreamListener {
    door: Door,
    runner: Runner,
    is_nonblocking: bool,
    /// Made when it is asked for.
    readiness: Option<Readiness>,
}

impl StreamListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn bind(nic: &Nic, address: impl ToSocketAddrs, options: StreamOptions) -> io::Result<Self> {
        let runner = Runner::new(Waiter::new(Waiting::EventBatch, None));
        Ok(Self { door: Door::bind(nic, address, options)?, runner, is_nonblocking: false, readiness: None })
    }

    /// Where it listens: with the port that the system chose, if none was given.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.door.address()
    }

    /// What became of those who asked for a stream so far.
    pub fn asked(&self) -> Asked {
        self.door.asked()
    }

    /// Whether [`StreamListener::accept`] says `WouldBlock` instead of waiting.
    pub const fn set_nonblocking(&mut self, nonblocking: bool) {
        self.is_nonblocking = nonblocking;
    }

    /// A descriptor for poll and epoll that is readable when accepting may go on: from the time that a call said
    /// `WouldBlock` until the next one does. It belongs to the listener. Until somebody accepts no handshake goes on.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn pollable_fd(&mut self) -> io::Result<RawFd> {
        if self.readiness.is_none() {
            self.readiness = Some(Readiness::new()?);
            self.follow(Some(Duration::ZERO))?;
        }
        Ok(self.readiness.as_ref().map_or(-1, Readiness::fd))
    }

    fn follow(&mut self, after: Option<Duration>) -> io::Result<()> {
        let Some(readiness) = &mut self.readiness else { return Ok(()) };
        self.runner.set.clear();
        self.door.wait_set(&mut self.runner.set);
        readiness.follow(&self.runner.set)?;
        readiness.wake_at(after);
        Ok(())
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// If the system cannot wait; `WouldBlock` if the listener does not wait.
    pub fn accept(&mut self) -> io::Result<StreamSocket> {
        let (carried, peer) = if self.is_nonblocking {
            self.take_now()?
        } else {
            self.runner.run(&mut self.door, None, Door::take)?
        };
        let options = self.door.options.clone();
        Ok(StreamSocket::new(carried, peer, Runner::of(&options), options))
    }

    fn take_now(&mut self) -> io::Result<(Carried<TcpStream>, SocketAddr)> {
        loop {
            let now = self.runner.clock.now();
            let next = self.door.progress(now);
            if let Some(taken) = self.door.take() {
                return Ok(taken);
            }
            if let Next::Idle { until } = next
                && let Next::Idle { until: later } = arm_then_look(&mut self.door, now)
            {
                if let Some(taken) = self.door.take() {
                    return Ok(taken);
                }
                let until = Nanos::earlier(until, later);
                self.follow(until.map(|until| until.since(now)))?;
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
}
