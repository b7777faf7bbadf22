//! The server: accepts connections and answers their calls with a tower service.

mod answer;
mod direct;
mod services;

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use bytes::Bytes;
use farcall_link::Nic;
use farcall_stream::{AsyncStream, AsyncStreamListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::Status;
use tower_service::Service;

use crate::body::IncomingBody;
use crate::connection::{Connection, DriverGuard, Turn};
use crate::options::GrpcOptions;
pub use direct::DirectMethods;
pub use services::Services;

/// Serves gRPC over byte streams. Calls are answered by generated servers, tonic's `Routes` or [`Services`], with any
/// tower layers around them.
pub struct Server {
    listener: AsyncStreamListener,
    options: GrpcOptions,
    direct: DirectMethods,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Server {
    /// Binds a server to an address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub fn bind(nic: &Nic, address: impl ToSocketAddrs, options: GrpcOptions) -> io::Result<Self> {
        let listener = AsyncStreamListener::bind(nic, address, options.streams())?;
        Ok(Self { listener, options, direct: DirectMethods::new() })
    }

    /// Answers `methods` directly, and all others with the service passed to [`Server::serve`].
    #[must_use]
    pub fn direct(mut self, methods: DirectMethods) -> Self {
        self.direct = self.direct.and(methods);
        self
    }

    /// Returns the local address, including the port that the kernel chose if none was given.
    ///
    /// # Errors
    /// Returns the error of `getsockname`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.address()
    }

    /// Serves until this future is dropped, which ends all connections and their calls.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot wait for descriptors.
    pub async fn serve<S, B>(self, service: S) -> io::Result<Infallible>
    where
        S: Service<http::Request<IncomingBody>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.serve_until(service, std::future::pending::<Infallible>()).await
    }

    /// Serves until `stop` is ready. After that no connection is accepted and no call begins; the function returns
    /// when the running calls have ended. A client that does not read its responses can delay that.
    ///
    /// Dropping this future ends all connections and their calls immediately.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot wait for descriptors.
    pub async fn serve_until<S, B, T>(mut self, service: S, stop: impl Future<Output = T>) -> io::Result<T>
    where
        S: Service<http::Request<IncomingBody>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Each connection task holds a receiver, so the sender is notified when all of them have ended.
        let (stopping, stops) = watch::channel(());
        let places = Arc::new(Semaphore::new(self.options.connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        let mut stop = std::pin::pin!(stop);
        let stopped = loop {
            tokio::select! {
                stopped = &mut stop => break stopped,
                accepted = accept(&mut self.listener, &places) => {
                    let (stream, place) = accepted?;
                    let (options, direct) = (self.options.clone(), self.direct.clone());
                    let (service, stops) = (service.clone(), stops.clone());
                    tokio::spawn(async move {
                        serve_connection(stream, options, direct, service, stops).await;
                        drop(place);
                    });
                }
            }
        };
        tracing::info!("drains: no call begins any more");
        drop(self.listener);
        drop(stops);
        let _none_is_left = stopping.send(());
        stopping.closed().await;
        Ok(stopped)
    }
}

/// Accepts the next client as soon as fewer than the maximum number of connections exist.
async fn accept(
    listener: &mut AsyncStreamListener,
    places: &Arc<Semaphore>,
) -> io::Result<(AsyncStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?, place))
}

async fn serve_connection<S, B>(
    stream: AsyncStream,
    options: GrpcOptions,
    direct: DirectMethods,
    service: S,
    mut stops: watch::Receiver<()>,
) where
    S: Service<http::Request<IncomingBody>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = tokio::select! {
        connection = Connection::of_server(stream, &options, direct.paths()) => connection,
        // The handshake is incomplete, so no call of this client has begun.
        _ = stops.changed() => return,
    };
    let connection = match connection {
        Ok(connection) => connection,
        Err(why) => return tracing::info!("refused a connection: {why}"),
    };
    tracing::debug!("a connection begins");
    let _guard = DriverGuard(&connection);
    let (mut turn, mut answers) = (Turn::default(), direct.for_connection());
    let mut stopping = std::pin::pin!(async {
        if stops.changed().await.is_ok() {
            connection.with(|calls| calls.stop_accepting("the server stops"));
            let _never_or_dropped = stops.changed().await;
        }
        // The future that serves was dropped: no task waits for the calls.
        connection.fail_all(&Status::unavailable("the server was dropped"));
        std::future::pending::<()>().await;
    });
    // A closure that borrows the service would require it to be `Sync`.
    let shared = &connection;
    poll_fn(move |context| {
        let _never = stopping.as_mut().poll(context);
        let over = shared.poll_turn(context, &mut turn);
        let has_many = turn.accepted.len() > 1;
        let mut start = || {
            for accepted in turn.accepted.drain(..) {
                match accepted.method {
                    Some(at) => answers.start(at, shared, accepted, context),
                    None => answer::start(Arc::clone(shared), accepted, service.clone(), context),
                }
            }
        };
        if has_many {
            shared.gather(start)
        } else {
            start()
        }
        over
    })
    .await;
    connection.close().await;
}
