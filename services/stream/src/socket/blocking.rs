//! Sockets whose calls block, or return `WouldBlock` in non-blocking mode.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::RawFd;
use std::time::Duration;

use farcall_drive::{Waiter, arm_then_poll, sleep_on};
use farcall_link::{Nic, WaitStrategy};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Progress, WaitSet};

use super::StreamOptions;
use super::acceptor::{AcceptCounts, StreamAcceptor};
use super::readiness::Readiness;
use crate::error::{OpenError, StreamError};
use crate::negotiated::NegotiatedStream;
use crate::stream::{Counters, Stream, StreamPath};

/// A byte stream with the interface of [`std::net::TcpStream`]. It is driven only by its own calls.
///
/// Bytes that a write has accepted arrive without further calls. Dropping the socket ends its stream and waits until
/// all bytes have arrived, at most as long as [`StreamOptions::linger`].
pub struct StreamSocket {
    negotiated: NegotiatedStream<TcpStream>,
    peer: SocketAddr,
    runner: Runner,
    options: StreamOptions,
    is_nonblocking: bool,
    /// `true` if the last call returned `WouldBlock`.
    is_waiting: bool,
    /// `true` if a [`super::StreamSet`] arms the socket before it sleeps.
    is_armed_by_set: bool,
    timeouts: Timeouts,
    /// Created on first use.
    readiness: Option<Readiness>,
}

farcall_verbs::opaque_debug!(StreamSocket { peer_address });

#[derive(Clone, Copy, Default)]
struct Timeouts {
    read: Option<Duration>,
    write: Option<Duration>,
}

/// Idle driver iterations between two reads of the clock, which cost as much as an iteration.
const TURNS_PER_CLOCK: u32 = 16;

/// Drives endpoints in the calling thread.
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

    /// Drives the endpoint until `done` returns a value, or until `timeout` has elapsed.
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
            if endpoint.progress(now) == Progress::Again {
                self.waiter.worked();
                continue;
            }
            if let Some(timeout) = timeout {
                let deadline = *deadline.get_or_insert_with(|| now + timeout);
                if now >= deadline {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            if self.waiter.was_idle(endpoint.poll_weight()) {
                now = self.clock.now();
                let next = self.waiter.arm_then_poll(endpoint, now);
                // The last poll may have completed the operation; no event would report that.
                if let Some(done) = done(endpoint) {
                    self.waiter.is_awake();
                    return Ok(done);
                }
                match next {
                    Progress::Again => self.waiter.worked(),
                    Progress::Idle { until } => {
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

    /// If there is no work at present, arms the endpoint and returns the current time and the time of the next poll,
    /// if one is needed. The endpoint's descriptors report earlier work. Returns `None` if there is work.
    fn idle_until<E: Endpoint>(&mut self, endpoint: &mut E) -> Option<(Nanos, Option<Nanos>)> {
        let now = self.clock.now();
        self.waiter.is_awake();
        match endpoint.progress(now) {
            Progress::Again => None,
            Progress::Idle { .. } => match self.waiter.arm_then_poll(endpoint, now) {
                Progress::Again => None,
                Progress::Idle { until } => Some((now, until)),
            },
        }
    }
}

impl StreamSocket {
    /// Connects to a [`StreamListener`] at an address.
    ///
    /// # Errors
    /// Returns an error if no process listens there, if it refuses, or if the device cannot create another stream.
    pub fn connect(
        nic: &Nic,
        address: impl ToSocketAddrs,
        options: StreamOptions,
    ) -> Result<Self, OpenError> {
        let mut name = String::from("the address");
        let socket = connect_tcp(address, options.connect_timeout, &mut name);
        let socket = socket.map_err(|source| OpenError::Unreachable { address: name.clone(), source })?;
        let unreachable = |source| OpenError::Unreachable { address: name.clone(), source };
        let peer = socket.peer_addr().map_err(unreachable)?;
        let mut negotiated = NegotiatedStream::open(nic, options.config, socket)?;
        let mut runner = Runner::of(&options);
        let settled = runner.run(&mut negotiated, Some(options.connect_timeout), |negotiated| {
            negotiated.is_settled().then_some(())
        });
        settled.map_err(unreachable)?;
        match negotiated.take_failure() {
            Some(OpenError::Unreachable { source, .. }) => Err(unreachable(source)),
            Some(failure) => Err(failure),
            None => Ok(Self::new(negotiated, peer, runner, options)),
        }
    }

    fn new(
        negotiated: NegotiatedStream<TcpStream>,
        peer: SocketAddr,
        runner: Runner,
        options: StreamOptions,
    ) -> Self {
        let timeouts = Timeouts::default();
        Self {
            negotiated,
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

    /// Returns the address of the other end.
    pub const fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the path that carries the bytes.
    pub const fn path(&self) -> StreamPath {
        self.negotiated.path()
    }

    /// Sets the timeouts of reads and writes; `None` disables a timeout.
    pub fn set_timeouts(&mut self, read: Option<Duration>, write: Option<Duration>) {
        self.timeouts = Timeouts { read, write };
    }

    /// Sets whether calls return `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// Returns an error if the socket was not created with [`StreamOptions::pollable`]. Sockets that wait by
    /// `WaitStrategy::Busy` are exempt: their application repeats its calls and needs no descriptor.
    pub fn set_nonblocking(&mut self, nonblocking: bool) -> io::Result<()> {
        if self.options.waiting != WaitStrategy::Busy {
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

    /// Returns a descriptor for `poll` and `epoll`, level- or edge-triggered. It is readable when reading or writing
    /// may continue, from the time when a call returned `WouldBlock` until the next call. It belongs to the socket.
    ///
    /// # Errors
    /// Returns an error if the socket was not created with [`StreamOptions::pollable`], or if no descriptor can be
    /// created.
    pub fn pollable_fd(&mut self) -> io::Result<RawFd> {
        self.check_pollable()?;
        if self.readiness.is_none() {
            self.runner.set.clear();
            self.runner.waiter.wait_set(&self.negotiated, &mut self.runner.set);
            let mut readiness = Readiness::new()?;
            readiness.follow(&self.runner.set)?;
            self.readiness = Some(readiness);
            // Later events make it readable. Earlier ones may be what a previous call that returned `WouldBlock` waits
            // for.
            if !self.arm()
                && let Some(readiness) = &mut self.readiness
            {
                readiness.wake_at(Some(Duration::ZERO));
            }
        }
        Ok(self.readiness.as_ref().map_or(-1, Readiness::fd))
    }

    /// Arms the descriptor and returns `true` if there is no work at present; it then becomes readable when there is.
    pub(super) fn arm(&mut self) -> bool {
        let Some((now, until)) = self.runner.idle_until(&mut self.negotiated) else { return false };
        if let Some(readiness) = &mut self.readiness {
            readiness.wake_at(until.map(|until| until.since(now)));
        }
        true
    }

    /// Ends the outgoing direction: the peer reads the bytes in flight, then the end. Reading continues.
    ///
    /// # Errors
    /// Returns an error if the stream broke.
    pub fn finish(&mut self) -> io::Result<()> {
        self.operate(None, |stream| {
            stream.finish();
            Ok(())
        })
    }

    /// Resets the stream: the peer reads the bytes that had arrived, then an error.
    pub fn reset(mut self) {
        if let Some(stream) = self.negotiated.stream() {
            stream.reset();
        }
    }

    /// Ends the outgoing direction and waits until all bytes have arrived at the peer.
    ///
    /// # Errors
    /// Returns an error if the stream broke, or if this takes longer than `timeout`.
    pub fn close(mut self, timeout: Duration) -> io::Result<()> {
        self.finish()?;
        self.runner
            .run(&mut self.negotiated, Some(timeout), |negotiated| negotiated.may_close().then_some(()))?;
        match self.negotiated.stream().and_then(|stream| stream.broken().cloned()) {
            Some(broken) => Err(StreamError::Reset(broken).into()),
            None => Ok(()),
        }
    }

    /// Returns the counters of the stream.
    pub fn counters(&mut self) -> Counters {
        self.negotiated.stream().map(|stream| stream.counters()).unwrap_or_default()
    }

    /// Returns whether unseen bytes have arrived. Costs one load.
    #[inline]
    pub(super) fn has_work(&mut self) -> bool {
        self.negotiated.stream().is_some_and(|stream| stream.has_work())
    }

    /// Returns whether the last call returned `WouldBlock`, so that the descriptor reports when another one may
    /// continue.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Records that the socket belongs to a [`super::StreamSet`], which calls [`StreamSocket::arm`] before it sleeps.
    pub(super) fn set_armed_by_set(&mut self) {
        self.is_armed_by_set = true;
        self.is_waiting = false;
    }

    /// Runs one driver iteration. Returns whether it found work.
    pub(super) fn make_progress(&mut self) -> bool {
        self.runner.waiter.is_awake();
        self.negotiated.progress(self.runner.clock.now()) == Progress::Again
    }

    /// Calls `operation`, repeatedly, until it returns a result other than `WouldBlock`.
    ///
    /// # Errors
    /// Returns the errors of `operation`; `WouldBlock` if the socket is non-blocking; `TimedOut` after `timeout`.
    #[inline]
    pub fn operate<T>(
        &mut self,
        timeout: Option<Duration>,
        mut operation: impl FnMut(&mut Stream) -> Result<T, StreamError>,
    ) -> io::Result<T> {
        let mut attempt =
            |negotiated: &mut NegotiatedStream<TcpStream>| match negotiated.stream().map(&mut operation) {
                Some(Err(StreamError::WouldBlock)) => None,
                Some(result) => Some(result),
                None => Some(Err(StreamError::BrokenPipe)),
            };
        if self.is_nonblocking {
            self.is_waiting = false;
            loop {
                if let Some(result) = attempt(&mut self.negotiated) {
                    return Ok(result?);
                }
                let is_armed_later = self.is_armed_by_set || self.options.waiting == WaitStrategy::Busy;
                if if is_armed_later { !self.make_progress() } else { self.arm() } {
                    self.is_waiting = true;
                    return Err(ErrorKind::WouldBlock.into());
                }
            }
        }
        Ok(self.runner.run(&mut self.negotiated, timeout, attempt)??)
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
        let Some(stream) = self.negotiated.stream() else { return };
        if stream.broken().is_some() {
            return;
        }
        stream.finish();
        let linger = Some(self.options.linger);
        // Bytes that do not arrive in time are lost, and the peer sees a reset. Over TCP the kernel continues to send
        // them.
        let _ =
            self.runner.run(&mut self.negotiated, linger, |negotiated| negotiated.may_close().then_some(()));
    }
}

fn connect_tcp(address: impl ToSocketAddrs, timeout: Duration, name: &mut String) -> io::Result<TcpStream> {
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

/// Accepts streams, like [`std::net::TcpListener`]. A slow client does not delay others.
pub struct StreamListener {
    acceptor: StreamAcceptor,
    runner: Runner,
    is_nonblocking: bool,
    /// Created on first use.
    readiness: Option<Readiness>,
}

farcall_verbs::opaque_debug!(StreamListener { address });

impl StreamListener {
    /// Binds a listener to an address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub fn bind(nic: &Nic, address: impl ToSocketAddrs, options: StreamOptions) -> io::Result<Self> {
        let runner = Runner::new(Waiter::new(WaitStrategy::EventBatch, None));
        Ok(Self {
            acceptor: StreamAcceptor::bind(nic, address, options)?,
            runner,
            is_nonblocking: false,
            readiness: None,
        })
    }

    /// Returns the local address, including the port that the kernel chose if none was given.
    ///
    /// # Errors
    /// Returns the error of `getsockname`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.acceptor.address()
    }

    /// Returns the outcomes of the stream requests received so far.
    pub fn accept_counts(&self) -> AcceptCounts {
        self.acceptor.accept_counts()
    }

    /// Sets whether [`StreamListener::accept`] returns `WouldBlock` instead of waiting.
    pub const fn set_nonblocking(&mut self, nonblocking: bool) {
        self.is_nonblocking = nonblocking;
    }

    /// Returns a descriptor for `poll` and `epoll` that is readable when accepting may continue, from the time when a
    /// call returned `WouldBlock` until the next call. It belongs to the listener. Handshakes make progress only in
    /// calls of [`StreamListener::accept`].
    ///
    /// # Errors
    /// Returns an error if no descriptor can be created.
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
        self.acceptor.wait_set(&mut self.runner.set);
        readiness.follow(&self.runner.set)?;
        readiness.wake_at(after);
        Ok(())
    }

    /// Waits for a stream and returns it.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot wait for descriptors; `WouldBlock` if the listener is non-blocking.
    pub fn accept(&mut self) -> io::Result<StreamSocket> {
        let (negotiated, peer) = if self.is_nonblocking {
            self.try_accept()?
        } else {
            self.runner.run(&mut self.acceptor, None, StreamAcceptor::take)?
        };
        let options = self.acceptor.options.clone();
        Ok(StreamSocket::new(negotiated, peer, Runner::of(&options), options))
    }

    fn try_accept(&mut self) -> io::Result<(NegotiatedStream<TcpStream>, SocketAddr)> {
        loop {
            let now = self.runner.clock.now();
            let next = self.acceptor.progress(now);
            if let Some(taken) = self.acceptor.take() {
                return Ok(taken);
            }
            if let Progress::Idle { until } = next
                && let Progress::Idle { until: later } = arm_then_poll(&mut self.acceptor, now)
            {
                if let Some(taken) = self.acceptor.take() {
                    return Ok(taken);
                }
                let until = Nanos::earlier(until, later);
                self.follow(until.map(|until| until.since(now)))?;
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
}
