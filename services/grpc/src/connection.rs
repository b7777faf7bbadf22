//! A connection: its stream, its calls, and the task that runs both.
//!
//! The task that submits a part writes it directly into the stream if there is space. One task, the driver, reads
//! received frames, passes them to the waiting tasks, and writes output for which there was no space. It yields to the
//! runtime after each iteration.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farcall_stream::{AsyncStream, StreamError};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::calls::{Accepted, Answer, CallId, Calls, DirectPaths, Outbound, Submission};
use crate::frame::hello::HELLO_BYTES;
use crate::frame::{HEAD_BYTES, Head, Hello};
use crate::options::GrpcOptions;

/// Maximum number of bytes read in one driver iteration, so that other tasks get their turn.
const TURN_BYTES: usize = 256 << 10;

/// A connection; see the module documentation.
pub(crate) struct Connection {
    pub peer: SocketAddr,
    state: Mutex<State>,
    linger: Duration,
}

struct State {
    stream: AsyncStream,
    calls: Calls,
    out: Outbound,
    /// The driver task, woken when there is work for it.
    driver: Option<Waker>,
    /// `true` while submissions are gathered, to be sent together.
    is_gathering: bool,
    /// `true` if a frame was composed after the pending output.
    is_composed: bool,
    /// `true` once no channel can open further calls on this connection.
    is_closing: bool,
    /// Number of buffered bytes needed to parse the next frame.
    need: usize,
}

/// Results of a driver iteration.
#[derive(Default)]
pub(crate) struct Turn {
    /// Calls that have begun.
    pub accepted: Vec<Accepted>,
    wakes: Vec<Waker>,
}

/// Returns the error of a connection whose peer is incompatible.
fn incompatible_peer(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Sends this end's hello and receives that of the peer.
async fn exchange_hellos(stream: &mut AsyncStream, options: &GrpcOptions) -> io::Result<Hello> {
    let ours = options.hello();
    stream.write_all(&ours.encode()).await?;
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).await?;
    let theirs = Hello::parse(&bytes).map_err(incompatible_peer)?;
    ours.version_with(theirs).map(|_| theirs).ok_or_else(|| {
        incompatible_peer(format!(
            "the other end speaks versions {} to {} of gRPC over streams, this one {} to {}; update the older one",
            theirs.version_min, theirs.version_max, ours.version_min, ours.version_max,
        ))
    })
}

async fn exchange_hellos_in_time(stream: &mut AsyncStream, options: &GrpcOptions) -> io::Result<Hello> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the other end does not speak gRPC over streams");
    let hello = tokio::time::timeout(options.stream.connect_timeout, exchange_hellos(stream, options)).await;
    let hello = hello.map_err(late).flatten();
    if hello.is_err() {
        // Shutting the stream down delivers this end's hello, so that the peer can report the versions.
        let _late_or_broken = tokio::time::timeout(options.stream.linger, stream.shutdown()).await;
    }
    hello
}

impl Connection {
    /// Creates a client's end. The semaphore has a permit for each call that may be open.
    pub async fn of_client(
        mut stream: AsyncStream,
        options: &GrpcOptions,
    ) -> io::Result<(Arc<Self>, Arc<Semaphore>)> {
        let theirs = exchange_hellos_in_time(&mut stream, options).await?;
        let (calls, permits) = Calls::of_client(options.hello(), theirs);
        Ok((Self::new(stream, calls, options), permits))
    }

    /// Creates a server's end.
    pub async fn of_server(
        mut stream: AsyncStream,
        options: &GrpcOptions,
        direct: Arc<DirectPaths>,
    ) -> io::Result<Arc<Self>> {
        let theirs = exchange_hellos_in_time(&mut stream, options).await?;
        Ok(Self::new(stream, Calls::of_server(options.hello(), theirs, direct), options))
    }

    fn new(stream: AsyncStream, calls: Calls, options: &GrpcOptions) -> Arc<Self> {
        let (peer, linger) = (stream.peer_address(), options.stream.linger);
        let out = Outbound::default();
        let state = State {
            stream,
            calls,
            out,
            driver: None,
            is_gathering: false,
            is_composed: false,
            is_closing: false,
            need: HEAD_BYTES,
        };
        Arc::new(Self { peer, state: Mutex::new(state), linger })
    }

    /// Calls `action` with the calls, sends the resulting frames, and wakes the affected tasks.
    pub fn with<T>(&self, action: impl FnOnce(&mut Calls) -> T) -> T {
        self.with_state(|state| action(&mut state.calls))
    }

    /// Calls `action` to compose a frame after the pending output, and sends it. `action` returns whether it composed
    /// one.
    pub fn compose(&self, action: impl FnOnce(&mut Calls, &mut Outbound) -> bool) -> bool {
        self.with_state(|state| {
            let is_done = action(&mut state.calls, &mut state.out);
            state.is_composed |= is_done;
            is_done
        })
    }

    fn with_state<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = action(&mut state);
        let has_sent = state.calls.has_queued() || state.is_composed;
        if has_sent && !state.is_gathering {
            state.is_composed = false;
            state.flush(self.peer);
        }
        // Usually empty; the vector then keeps its memory.
        let wakes = state.calls.take_wakes();
        let ends = state.is_closing || state.calls.is_ending();
        let driver = if has_sent || ends { state.driver.take() } else { None };
        drop(state);
        wakes.into_iter().chain(driver).for_each(Waker::wake);
        result
    }

    /// Gathers everything that is submitted during `action` and sends it together afterwards.
    pub fn gather(&self, action: impl FnOnce()) {
        self.state.lock().is_gathering = true;
        action();
        self.with_state(|state| state.is_gathering = false);
    }

    /// Declares that this end opens no further calls: the connection ends when the open ones have ended.
    pub fn close_when_idle(&self) {
        self.with_state(|state| state.is_closing = true);
    }

    /// Runs one driver iteration. Ready when the connection has ended.
    pub fn poll_turn(&self, context: &mut Context<'_>, turn: &mut Turn) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.driver.as_ref().is_some_and(|driver| driver.will_wake(context.waker())) {
            state.driver = Some(context.waker().clone());
        }
        let over = state.turn(context, self.peer);
        state.calls.take_accepted(&mut turn.accepted);
        std::mem::swap(&mut turn.wakes, &mut state.calls.wakes);
        drop(state);
        turn.wakes.drain(..).for_each(Waker::wake);
        over
    }

    /// Drives a client's end.
    pub async fn drive(self: Arc<Self>) {
        let _guard = DriverGuard(&self);
        let mut turn = Turn::default();
        poll_fn(|context| self.poll_turn(context, &mut turn)).await;
        self.close().await;
    }

    /// Ends the stream. Written bytes are delivered if the peer reads them within the linger time.
    pub async fn close(&self) {
        let closing = poll_fn(|context| Pin::new(&mut self.state.lock().stream).poll_shutdown(context));
        let _late_or_broken = tokio::time::timeout(self.linger, closing).await;
        self.fail_all(&Status::unavailable(format!("the connection to {} has ended", self.peer)));
    }

    /// Ends all calls, and with them the connection.
    pub fn fail_all(&self, why: &Status) {
        self.with(|calls| calls.fail_all(why));
    }
}

/// Guard held by the driver: when it is dropped, no task drives the connection, and its calls fail.
pub(crate) struct DriverGuard<'a>(pub &'a Connection);

impl Drop for DriverGuard<'_> {
    fn drop(&mut self) {
        let why = format!("the runtime that ran the connection to {} has ended", self.0.peer);
        self.0.fail_all(&Status::unavailable(why));
    }
}

impl State {
    /// Writes pending output as far as there is space.
    fn flush(&mut self, peer: SocketAddr) {
        loop {
            if !self.out.is_pending() {
                self.calls.emit(&mut self.out);
            }
            let left = self.out.len_bytes() - self.out.sent;
            if left == 0 {
                return;
            }
            let pieces = self.out.segments();
            let written = self.stream.get_mut().and_then(|stream| {
                stream.write_with(left, |space| {
                    for piece in pieces {
                        space.put(piece);
                    }
                })
            });
            match written {
                Ok(len_bytes) => self.out.advance(len_bytes),
                Err(StreamError::WouldBlock) => return,
                Err(error) => {
                    self.out = Outbound::default();
                    return self.calls.fail_all(&lost(peer, &error));
                }
            }
        }
    }

    fn turn(&mut self, context: &mut Context<'_>, peer: SocketAddr) -> Poll<()> {
        self.flush(peer);
        if self.calls.is_broken() {
            return Poll::Ready(());
        }
        if (self.is_closing || self.calls.is_ending()) && !self.calls.has_any_open() && !self.out.is_pending()
        {
            return Poll::Ready(());
        }
        let Self { stream, out, need, .. } = self;
        let (is_pending, need) = (out.is_pending(), *need);
        let polled = stream.poll_until(context, |stream| {
            stream.fill(need) != Err(StreamError::WouldBlock) || is_pending && stream.is_writable()
        });
        match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => {
                self.calls.fail_all(&Status::unavailable(format!("the connection to {peer}: {error}")));
            }
            Poll::Ready(Ok(())) => {
                let Self { stream, calls, need, .. } = self;
                match take_frames(stream, calls) {
                    Ok(now) => *need = now,
                    Err(why) => calls.fail_all(&lost(peer, &why)),
                }
                self.flush(peer);
            }
        }
        // Yield, so that the tasks woken by this iteration run before the next one.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

fn lost(peer: SocketAddr, why: &dyn std::fmt::Display) -> Status {
    Status::unavailable(format!("the connection to {peer} is lost: {why}; the call may have run"))
}

/// Passes received frames to the calls. Returns the number of bytes that the next frame needs.
fn take_frames(stream: &mut AsyncStream, calls: &mut Calls) -> Result<usize, String> {
    let stream = stream.get_mut().map_err(|error| error.to_string())?;
    let mut taken = 0;
    while taken < TURN_BYTES {
        let bytes = match stream.fill(HEAD_BYTES) {
            Err(StreamError::WouldBlock) => return Ok(HEAD_BYTES),
            bytes => bytes.map_err(|error| error.to_string())?,
        };
        let Some(head) = bytes.first_chunk() else {
            return Err("the peer ended it".to_owned());
        };
        let head = Head::parse(head).map_err(|error| error.to_string())?;
        let frame_bytes = HEAD_BYTES + head.len_bytes;
        let bytes = match stream.fill(frame_bytes) {
            Err(StreamError::WouldBlock) => return Ok(frame_bytes),
            bytes => bytes.map_err(|error| error.to_string())?,
        };
        let payload = bytes.get(HEAD_BYTES..frame_bytes).ok_or("it ends within a frame")?;
        calls.handle_frame(head, payload).map_err(|error| error.to_string())?;
        stream.consume(frame_bytes);
        taken += frame_bytes;
    }
    Ok(HEAD_BYTES)
}

/// A call of a connection.
pub(crate) struct CallRef {
    pub connection: Arc<Connection>,
    pub id: CallId,
}

impl CallRef {
    /// Submits the next part as soon as the part before has been sent.
    pub async fn submit(&self, part: Submission) -> Result<(), Status> {
        let mut part = Some(part);
        poll_fn(|context| self.connection.with(|calls| calls.poll_submit(self.id, context, &mut part))).await
    }

    pub fn poll_answer(&self, context: &Context<'_>) -> Poll<Result<Answer, Status>> {
        self.connection.with(|calls| calls.poll_answer(self.id, context))
    }

    pub fn poll_frame(
        &self,
        context: &Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Status>>> {
        self.connection.with(|calls| calls.poll_frame(self.id, context))
    }

    pub fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        self.connection.with(|calls| calls.poll_ended(self.id, context))
    }

    pub fn reset(&self, code: Code, reason: &str) {
        self.connection.with(|calls| calls.reset(self.id, code, reason));
    }
}
