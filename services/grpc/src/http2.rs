//! gRPC with HTTP/2, as implemented by tonic and hyper, over byte streams instead of TCP.
//!
//! A client: `Endpoint::from_static("http://any").connect_with_connector(Connector::new(...))`. A server:
//! `Server::builder().add_service(...).serve_with_incoming(Incoming::bind(...))`. Other programs that use hyper or
//! tonic do the same. [`crate::Channel`] and [`crate::Server`] avoid the cost of HTTP/2.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::{Context, Poll};

use farcall_link::Nic;
use farcall_stream::{AsyncStream, AsyncStreamListener, OpenError, StreamOptions};
use futures_core::Stream;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower_service::Service;

/// Connector to one address; it ignores the address of the request.
#[derive(Clone)]
pub struct Connector {
    nic: Nic,
    address: SocketAddr,
    options: StreamOptions,
}

impl Connector {
    /// Creates a connector to the [`Incoming`] at `address`.
    pub fn new(nic: &Nic, address: SocketAddr, options: StreamOptions) -> Self {
        Self { nic: nic.clone(), address, options }
    }
}

impl Service<http::Uri> for Connector {
    type Response = TokioIo<AsyncStream>;
    type Error = OpenError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, OpenError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), OpenError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: http::Uri) -> Self::Future {
        let Self { nic, address, options } = self.clone();
        Box::pin(async move { AsyncStream::connect(&nic, address, options).await.map(TokioIo::new) })
    }
}

/// Incoming connections for `serve_with_incoming`.
pub struct Incoming {
    listener: AsyncStreamListener,
}

impl Incoming {
    /// Binds a listener to an address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub fn bind(nic: &Nic, address: impl ToSocketAddrs, options: StreamOptions) -> io::Result<Self> {
        Ok(Self { listener: AsyncStreamListener::bind(nic, address, options)? })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Returns the error of `getsockname`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.address()
    }
}

impl Stream for Incoming {
    type Item = io::Result<Accepted>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Dropping this future loses no stream: accepted streams stay in the listener.
        let accepted = std::pin::pin!(self.listener.accept()).poll(context);
        accepted.map(|stream| Some(stream.map(Accepted)))
    }
}

/// A stream that provides the address of its peer, as tonic requires of connections.
pub struct Accepted(AsyncStream);

pub(crate) fn connect_info(peer: SocketAddr) -> TcpConnectInfo {
    TcpConnectInfo { local_addr: None, remote_addr: Some(peer) }
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        connect_info(self.0.peer_address())
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
