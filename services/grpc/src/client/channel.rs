//! A channel: calls over one connection, which is re-established after a loss.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use farcall_link::Nic;
use farcall_stream::{AsyncStream, OpenError};
use farcall_verbs::with_sources;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::ResponseFuture;
use crate::connection::{CallRef, Connection};
use crate::options::GrpcOptions;

/// A client's channel to a [`crate::Server`], from which generated clients are created. Its clones share one
/// connection.
///
/// The next call after a connection loss establishes a new connection. The connection ends when the last clone is
/// dropped and no call is open.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    nic: Nic,
    address: SocketAddr,
    options: GrpcOptions,
    current: Mutex<Option<Arc<LiveConnection>>>,
    /// Held by the task that is connecting.
    connecting: tokio::sync::Mutex<()>,
}

/// A connection on which calls can be opened.
pub(super) struct LiveConnection {
    connection: Arc<Connection>,
    permits: Arc<Semaphore>,
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        self.connection.close_when_idle();
    }
}

impl LiveConnection {
    fn is_usable(&self) -> bool {
        self.connection.with(|calls| calls.refuses_calls().is_none())
    }

    /// Opens a call if a permit is available now.
    fn try_begin(&self) -> Option<Result<CallRef, Status>> {
        self.permits.try_acquire().ok()?.forget();
        Some(self.begin_with_permit())
    }

    /// Opens a call as soon as a permit is available.
    async fn begin(&self) -> Result<CallRef, Status> {
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
        self.begin_with_permit()
    }

    fn begin_with_permit(&self) -> Result<CallRef, Status> {
        let id = self.connection.with(crate::calls::Calls::open)?;
        Ok(CallRef { connection: Arc::clone(&self.connection), id })
    }
}

impl Channel {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns an error if no process listens there, or if it does not use this protocol.
    pub async fn connect(nic: &Nic, address: SocketAddr, options: GrpcOptions) -> Result<Self, OpenError> {
        let channel = Self::connect_lazy(nic, address, options);
        channel.inner.connect().await?;
        Ok(channel)
    }

    /// Creates a channel that connects at its first call. A call fails with [`tonic::Code::Unavailable`] if the
    /// connection cannot be established.
    pub fn connect_lazy(nic: &Nic, address: SocketAddr, options: GrpcOptions) -> Self {
        let (current, connecting) = (Mutex::new(None), tokio::sync::Mutex::new(()));
        Self { inner: Arc::new(Inner { nic: nic.clone(), address, options, current, connecting }) }
    }
}

impl Channel {
    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Inner {
    fn current(&self) -> Option<Arc<LiveConnection>> {
        self.current.lock().clone()
    }

    /// Opens a call over the existing connection, without waiting.
    pub fn try_begin(&self) -> Option<CallRef> {
        self.current()?.try_begin()?.ok()
    }

    /// Opens a call, over a new connection if necessary.
    pub async fn begin(self: Arc<Self>) -> Result<CallRef, Status> {
        let unreachable = |error: OpenError| Status::unavailable(with_sources(&error));
        let live = match self.current().filter(|live| live.is_usable()) {
            Some(live) => live,
            None => self.connect().await.map_err(unreachable)?,
        };
        live.begin().await
    }

    /// Connects, unless another task has connected in the meantime.
    async fn connect(&self) -> Result<Arc<LiveConnection>, OpenError> {
        let _one = self.connecting.lock().await;
        if let Some(live) = self.current().filter(|live| live.is_usable()) {
            return Ok(live);
        }
        let stream = AsyncStream::connect(&self.nic, self.address, self.options.streams()).await?;
        let unreachable = |source| OpenError::Unreachable { address: self.address.to_string(), source };
        let (connection, permits) =
            Connection::of_client(stream, &self.options).await.map_err(unreachable)?;
        tokio::spawn(Arc::clone(&connection).drive());
        let live = Arc::new(LiveConnection { connection, permits });
        *self.current.lock() = Some(Arc::clone(&live));
        Ok(live)
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<crate::IncomingBody>;
    type Error = Status;
    type Future = ResponseFuture;

    /// Always ready: each call waits for its own permit.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        ResponseFuture::new(Arc::clone(&self.inner), request)
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("address", &self.inner.address).finish_non_exhaustive()
    }
}
