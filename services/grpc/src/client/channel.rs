//! A channel: calls over one connection, which is made anew when it was lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use farcall_link::Nic;
use farcall_stream::{AsyncStream, OpenError};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::ResponseFuture;
use crate::connection::{CallRef, Connection};
use crate::options::GrpcOptions;

/// A client's way to a [`crate::Server`]: what generated clients are made from. Its clones share one connection.
///
/// A connection that was lost is made anew by the next call. It ends when the last clone is gone and no call is open.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    nic: Nic,
    address: SocketAddr,
    options: GrpcOptions,
    current: Mutex<Option<Arc<Line>>>,
    /// Held by who connects.
    connecting: tokio::sync::Mutex<()>,
}

/// A connection, as long as calls can be begun over it.
pub(super) struct Line {
    connection: Arc<Connection>,
    permits: Arc<Semaphore>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.connection.leave();
    }
}

impl Line {
    fn is_usable(&self) -> bool {
        self.connection.with(|calls| calls.refuses_calls().is_none())
    }

    /// A new call, if one may be opened now.
    fn try_begin(&self) -> Option<Result<CallRef, Status>> {
        self.permits.try_acquire().ok()?.forget();
        Some(self.begin_with_permit())
    }

    /// A new call, as soon as one may be opened.
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
    /// If nobody listens there, or speaks something else.
    pub async fn connect(nic: &Nic, address: SocketAddr, options: GrpcOptions) -> Result<Self, OpenError> {
        let channel = Self::connect_lazy(nic, address, options);
        channel.inner.connect().await?;
        Ok(channel)
    }

    /// A channel whose first call connects; a call that cannot is [`tonic::Code::Unavailable`].
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
    fn current(&self) -> Option<Arc<Line>> {
        self.current.lock().clone()
    }

    /// A call over the connection that there is, without waiting for anything.
    pub fn try_begin(&self) -> Option<CallRef> {
        self.current()?.try_begin()?.ok()
    }

    /// A call, over a new connection if need be.
    pub async fn begin(self: Arc<Self>) -> Result<CallRef, Status> {
        let unreachable = |error: OpenError| Status::unavailable(error.to_string());
        let line = match self.current().filter(|line| line.is_usable()) {
            Some(line) => line,
            None => self.connect().await.map_err(unreachable)?,
        };
        line.begin().await
    }

    /// Connects, unless somebody did meanwhile.
    async fn connect(&self) -> Result<Arc<Line>, OpenError> {
        let _one = self.connecting.lock().await;
        if let Some(line) = self.current().filter(|line| line.is_usable()) {
            return Ok(line);
        }
        let stream = AsyncStream::connect(&self.nic, self.address, self.options.streams()).await?;
        let unreachable = |source| OpenError::Unreachable { address: self.address.to_string(), source };
        let (connection, permits) =
            Connection::of_client(stream, &self.options).await.map_err(unreachable)?;
        tokio::spawn(Arc::clone(&connection).drive());
        let line = Arc::new(Line { connection, permits });
        *self.current.lock() = Some(Arc::clone(&line));
        Ok(line)
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<crate::IncomingBody>;
    type Error = Status;
    type Future = ResponseFuture;

    /// Always ready: a call waits by itself for its turn.
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
