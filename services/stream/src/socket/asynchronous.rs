//! Sockets for tokio.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use farcall_drive::TokioDriver;
use farcall_link::Nic;
use farcall_link::WaitStrategy;
use farcall_verbs::{Endpoint, MonotonicClock, Progress};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::StreamOptions;
use super::acceptor::{AcceptCounts, StreamAcceptor};
use crate::error::{OpenError, StreamError};
use crate::negotiated::NegotiatedStream;
use crate::stream::{Stream, StreamPath};

/// A byte stream for tokio. The tasks that read and write it drive it; these may be two tasks, after
/// `tokio::io::split`.
///
/// `shutdown` ends the outgoing direction and waits until all bytes have arrived.
pub struct AsyncStream {
    negotiated: NegotiatedStream<TcpStream>,
    peer: SocketAddr,
    driver: TokioDriver<MonotonicClock>,
    waiting: Arc<Waiters>,
    waker: Waker,
}

farcall_verbs::opaque_debug!(AsyncStream { peer_address });

/// The waiting tasks. A wake-up of the stream wakes both.
#[derive(Default)]
struct Waiters([Mutex<Option<Waker>>; 2]);

const READER: usize = 0;
const WRITER: usize = 1;

impl Waiters {
    fn set(&self, which: usize, waker: &Waker) {
        let mut slot = self.0[which].lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.as_ref().is_some_and(|before| before.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    fn wake_one(&self, which: usize) {
        let waiter = self.0[which].lock().unwrap_or_else(PoisonError::into_inner).take();
        waiter.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_one(READER);
        self.wake_one(WRITER);
    }
}

impl AsyncStream {
    /// Connects to a listener at an address.
    ///
    /// # Errors
    /// Returns the errors of [`super::StreamSocket::connect`].
    pub async fn connect(nic: &Nic, address: SocketAddr, options: StreamOptions) -> Result<Self, OpenError> {
        let unreachable = |source| OpenError::Unreachable { address: address.to_string(), source };
        let late = || unreachable(io::ErrorKind::TimedOut.into());
        let opened = tokio::time::timeout(options.connect_timeout, async {
            let socket = tokio::net::TcpStream::connect(address).await.map_err(unreachable)?;
            socket.set_nodelay(true).map_err(unreachable)?;
            let socket = socket.into_std().map_err(unreachable)?;
            let mut negotiated = NegotiatedStream::open(nic, options.config, socket)?;
            let mut driver = TokioDriver::new(MonotonicClock::new(), WaitStrategy::EventBatch);
            driver.run_until(&mut negotiated, |negotiated| negotiated.is_settled()).await?;
            match negotiated.take_failure() {
                Some(OpenError::Unreachable { source, .. }) => Err(unreachable(source)),
                Some(failure) => Err(failure),
                None => Ok(negotiated),
            }
        });
        let negotiated = opened.await.map_err(|_late| late())??;
        Ok(Self::new(negotiated, address, &options))
    }

    fn new(negotiated: NegotiatedStream<TcpStream>, peer: SocketAddr, options: &StreamOptions) -> Self {
        let pollers = options.pollers.clone();
        let driver = TokioDriver::with_pollers(MonotonicClock::new(), options.waiting, pollers);
        let waiting = Arc::<Waiters>::default();
        let waker = Waker::from(Arc::clone(&waiting));
        Self { negotiated, peer, driver, waiting, waker }
    }

    /// Returns the address of the other end.
    pub const fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the path that carries the bytes.
    pub const fn path(&self) -> StreamPath {
        self.negotiated.path()
    }

    /// Returns the underlying stream, which never waits. [`AsyncStream::poll_until`] waits for operations that
    /// returned `WouldBlock`.
    ///
    /// # Errors
    /// Returns [`StreamError::BrokenPipe`] if the stream no longer exists.
    pub fn get_mut(&mut self) -> Result<&mut Stream, StreamError> {
        self.negotiated.stream().ok_or(StreamError::BrokenPipe)
    }

    /// Drives the stream until `done` returns `true`. For applications in which one task drives the stream for others.
    /// It replaces reading and writing through this type: tasks that wait in those are not woken by it.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot wait for descriptors.
    pub fn poll_until(
        &mut self,
        context: &mut Context<'_>,
        mut done: impl FnMut(&mut Stream) -> bool,
    ) -> Poll<io::Result<()>> {
        let mut is_done =
            |negotiated: &mut NegotiatedStream<TcpStream>| negotiated.stream().is_none_or(&mut done);
        if is_done(&mut self.negotiated) {
            return Poll::Ready(Ok(()));
        }
        self.driver.poll(context, &mut self.negotiated, is_done).map_err(io::Error::other)
    }

    /// Calls `operation` until it returns a result other than `WouldBlock`.
    fn poll_operate<T>(
        &mut self,
        context: &Context<'_>,
        which: usize,
        mut operation: impl FnMut(&mut Stream) -> Result<T, StreamError>,
    ) -> Poll<io::Result<T>> {
        let mut outcome = None;
        let mut attempt = |negotiated: &mut NegotiatedStream<TcpStream>| {
            let result = negotiated.stream().map_or(Err(StreamError::BrokenPipe), &mut operation);
            if result.as_ref().err() != Some(&StreamError::WouldBlock) {
                outcome = Some(result);
            }
            outcome.is_some()
        };
        if !attempt(&mut self.negotiated) {
            self.waiting.set(which, context.waker());
            let context = &mut Context::from_waker(&self.waker);
            let polled = self.driver.poll(context, &mut self.negotiated, attempt);
            if polled.is_ready() {
                // The driver wakes only the task that polled it last: the other task must poll it again.
                self.waiting.wake_one(1 - which);
            }
            if let Poll::Ready(Err(error)) = polled {
                return Poll::Ready(Err(io::Error::other(error)));
            }
        }
        self.wake_other(1 - which);
        outcome.map_or(Poll::Pending, |result| Poll::Ready(result.map_err(Into::into)))
    }

    /// Wakes the other task if the driver iterations made the stream readable or writable for it.
    fn wake_other(&mut self, which: usize) {
        let Some(stream) = self.negotiated.stream() else { return self.waiting.wake_one(which) };
        if if which == READER { stream.is_readable() } else { stream.is_writable() } {
            self.waiting.wake_one(which);
        }
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let slice = into.initialize_unfilled();
        let read = self.poll_operate(context, READER, |stream| stream.read(slice));
        read.map_ok(|count| into.advance(count))
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_operate(context, WRITER, |stream| stream.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(stream) = this.negotiated.stream() {
            stream.finish();
        }
        this.waiting.set(WRITER, context.waker());
        let both = &mut Context::from_waker(&this.waker);
        let polled = this.driver.poll(both, &mut this.negotiated, |negotiated| negotiated.may_close());
        this.waiting.wake_one(READER);
        let broken = this.negotiated.stream().and_then(|stream| stream.broken().cloned());
        polled.map(|polled| match (polled, broken) {
            (Err(error), _) => Err(io::Error::other(error)),
            (Ok(()), Some(broken)) => Err(StreamError::Reset(broken).into()),
            (Ok(()), None) => Ok(()),
        })
    }
}

/// Maximum number of driver iterations in which a dropped stream can end in an orderly way. Dropping must not block
/// the task.
const LAST_TURNS: u32 = 100;

impl Drop for AsyncStream {
    fn drop(&mut self) {
        if let Some(stream) = self.negotiated.stream().filter(|stream| stream.broken().is_none()) {
            stream.finish();
            for _ in 0..LAST_TURNS {
                if self.negotiated.may_close() {
                    break;
                }
                let _: Progress = self.negotiated.progress(farcall_verbs::Clock::now(&MonotonicClock::new()));
            }
        }
    }
}

/// Accepts streams for tokio.
pub struct AsyncStreamListener {
    acceptor: StreamAcceptor,
    driver: TokioDriver<MonotonicClock>,
}

farcall_verbs::opaque_debug!(AsyncStreamListener { address });

impl AsyncStreamListener {
    /// Binds a listener to an address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub fn bind(nic: &Nic, address: impl ToSocketAddrs, options: StreamOptions) -> io::Result<Self> {
        let driver = TokioDriver::new(MonotonicClock::new(), WaitStrategy::EventBatch);
        Ok(Self { acceptor: StreamAcceptor::bind(nic, address, options)?, driver })
    }

    /// Returns the local address.
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

    /// Waits for a stream and returns it.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot wait for descriptors.
    pub async fn accept(&mut self) -> io::Result<AsyncStream> {
        let ran = self.driver.run_until(&mut self.acceptor, |acceptor| acceptor.has_any()).await;
        ran.map_err(io::Error::other)?;
        let (negotiated, peer) = self.acceptor.take().ok_or(io::ErrorKind::WouldBlock)?;
        Ok(AsyncStream::new(negotiated, peer, &self.acceptor.options))
    }
}
