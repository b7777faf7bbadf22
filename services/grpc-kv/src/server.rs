//! A thread that serves a store.

use crate::service::KvService;
use crate::store::OrderedStore;
use crate::v1::ordered_kv_direct;
use crate::v1::ordered_kv_server::OrderedKvServer;
use farcall_grpc::http2::Incoming;
use farcall_grpc::{GrpcOptions, Server, Services};
use farcall_link::Nic;
use farcall_stream::StreamOptions;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;

/// Transport of the calls.
#[derive(Clone)]
pub enum Transport {
    /// Frames over byte streams, without HTTP/2: clients are created from `farcall_grpc::Channel`.
    Native(Nic, StreamOptions),
    /// HTTP/2 over byte streams: clients connect with `farcall_grpc::http2::Connector`.
    Http2(Nic, StreamOptions),
    /// HTTP/2 over TCP: any gRPC client.
    Tcp,
}

/// Options of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Transport.
    pub transport: Transport,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Number of threads that answer calls.
    pub threads: usize,
}

/// Error of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LsmServerError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system call.
        source: io::Error,
    },
    /// The server thread ended unexpectedly.
    #[error("serving failed: {0}")]
    Serve(String),
}

/// Maximum time that a stopping server waits for running calls.
const DRAIN: Duration = Duration::from_secs(5);

/// A running server of a store.
pub struct LsmServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<(), LsmServerError>>,
}

impl LsmServer {
    /// Binds the address and starts a thread that serves.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound or the thread cannot be started.
    pub fn start(store: Arc<OrderedStore>, options: ServerOptions) -> Result<Self, LsmServerError> {
        let (stop, stops) = watch::channel(false);
        let (told, tells) = mpsc::channel();
        let serve = move || {
            let runtime = runtime(options.threads).map_err(failed)?;
            runtime.block_on(async move {
                let drained = stops.clone();
                let serving = serve(store, options, stops, |address| {
                    let _ = told.send(address);
                });
                tokio::select! {
                    served = serving => served,
                    () = drain_timeout(drained) => {
                        tracing::warn!("calls that ran {DRAIN:?} after the end began were broken off");
                        Ok(())
                    }
                }
            })
        };
        let thread = thread::Builder::new().name("kv-server".to_owned()).spawn(serve).map_err(failed)?;
        match tells.recv() {
            Ok(address) => Ok(Self { address, stop, thread }),
            // The thread ended before it reported the address.
            Err(_) => match join(thread) {
                Err(error) => Err(error),
                Ok(()) => Err(LsmServerError::Serve("the thread ended at once".to_owned())),
            },
        }
    }

    /// Returns the local address, including the port that the kernel chose if none was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the server thread is running.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Stops accepting calls and waits for the running ones, at most five seconds.
    ///
    /// # Errors
    /// Returns an error if the server had failed before.
    pub fn stop(self) -> Result<(), LsmServerError> {
        self.stop.send_replace(true);
        join(self.thread)
    }
}

fn join(thread: JoinHandle<Result<(), LsmServerError>>) -> Result<(), LsmServerError> {
    thread.join().unwrap_or_else(|_| Err(LsmServerError::Serve("a thread panicked".to_owned())))
}

fn failed(error: impl std::fmt::Display) -> LsmServerError {
    LsmServerError::Serve(error.to_string())
}

fn runtime(threads: usize) -> io::Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).thread_name("kv-calls").enable_all().build()
}

async fn stopped(mut stops: watch::Receiver<bool>) {
    // Dropping the server without stopping it closes the channel, which ends the wait with an error and also stops the
    // server.
    let _ = stops.wait_for(|is_over| *is_over).await;
}

async fn drain_timeout(stops: watch::Receiver<bool>) {
    stopped(stops).await;
    tokio::time::sleep(DRAIN).await;
}

async fn serve(
    store: Arc<OrderedStore>,
    options: ServerOptions,
    stops: watch::Receiver<bool>,
    tell: impl FnOnce(SocketAddr),
) -> Result<(), LsmServerError> {
    let ServerOptions { transport, listen: address, .. } = options;
    let not_there = |source| LsmServerError::Listen { address, source };
    let service = KvService::new(store);
    let http2 = tonic::transport::Server::builder().add_service(OrderedKvServer::new(service.clone()));
    match transport {
        Transport::Native(nic, streams) => {
            let options = GrpcOptions::default().stream(streams);
            let server = Server::bind(&nic, address, options).map_err(not_there)?;
            let server = server.direct(ordered_kv_direct::methods(Arc::new(service.clone())));
            tell(server.address().map_err(not_there)?);
            let services = Services::new().add_service(OrderedKvServer::new(service));
            server.serve_until(services, stopped(stops)).await.map_err(failed)
        }
        Transport::Http2(nic, streams) => {
            let incoming = Incoming::bind(&nic, address, streams).map_err(not_there)?;
            tell(incoming.address().map_err(not_there)?);
            http2.serve_with_incoming_shutdown(incoming, stopped(stops)).await.map_err(failed)
        }
        Transport::Tcp => {
            let incoming = TcpIncoming::bind(address).map_err(not_there)?.with_nodelay(Some(true));
            tell(incoming.local_addr().map_err(not_there)?);
            http2.serve_with_incoming_shutdown(incoming, stopped(stops)).await.map_err(failed)
        }
    }
}
