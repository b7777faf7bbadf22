//! A key-value server in this process: one thread and one partition of the store per core. Memcached clients connect
//! over TCP and Unix sockets, RPC clients over verbs.
//!
//! ```
//! use farcall_kv::server::KvServer;
//!
//! let server = KvServer::builder().tcp("127.0.0.1:0".parse()?).start()?;
//! println!("any memcached client may connect to {:?}", server.tcp_addresses());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod handler;
mod maintenance;
mod sockets;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::Stop;
use farcall_link::{Nic, WaitStrategy};
use farcall_rpc::{ResponderParts, Server};

pub use builder::{KvServerBuilder, KvServerError};
use handler::KvEndpoint;

use crate::front_end::{FrontEnd, FrontEndConfig, Listener};
use crate::store::{Clock, ConfigError, Partition};

/// Maximum time for which a stopping thread executes commands that it received from sockets.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait strategy of a thread that serves RPC: it polls for some hundred microseconds without work before it sleeps.
const WAITING: WaitStrategy = WaitStrategy::Adaptive { max_retry: 10_000 };

/// A running server. Dropping it stops the server.
pub struct KvServer {
    stop: Stop,
    threads: Threads,
    tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
}

/// The server threads, one for each partition.
enum Threads {
    /// Threads that sleep on their sockets.
    Sockets(Vec<JoinHandle<Result<(), KvServerError>>>),
    /// Threads that poll for calls, and poll their sockets in between. `None` after the server was stopped.
    Rpc(Option<Server>),
}

impl fmt::Debug for KvServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rpc = self.rpc_address();
        f.debug_struct("KvServer")
            .field("tcp", &self.tcp)
            .field("unix", &self.unix)
            .field("rpc", &rpc)
            .finish()
    }
}

impl KvServer {
    /// Returns a builder with the default configuration.
    pub fn builder() -> KvServerBuilder {
        KvServerBuilder::default()
    }

    fn start(builder: KvServerBuilder) -> Result<Self, KvServerError> {
        let listeners = builder.listen()?;
        let tcp: Vec<_> = listeners.iter().filter_map(Listener::tcp_address).collect();
        let unix: Vec<_> = listeners.iter().filter_map(Listener::unix_path).collect();
        let has_sockets = !listeners.is_empty();
        let clock = Clock::start();
        let started_ms = clock.now_ms();
        let front_end_config = FrontEndConfig {
            connections_max: builder.connections_max,
            buffers_max_bytes: builder.buffers_max_bytes(),
            started_ms,
            ..FrontEndConfig::default()
        };
        let front_ends = FrontEnd::bind(listeners, builder.partitions, &front_end_config)?;
        builder.check_memory()?;
        let partitions = (0..builder.partitions)
            .map(|partition| {
                let mut partition = Partition::new(builder.partition_config(partition), started_ms)?;
                partition.set_clock(clock);
                Ok(partition)
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let stop = Stop::new().map_err(KvServerError::Thread)?;
        let parts = front_ends.into_iter().zip(partitions).collect();
        let mut server = Self { stop, threads: Threads::Sockets(Vec::new()), tcp, unix };
        match builder.rpc {
            Some(at) => server.threads = Threads::Rpc(Some(serve_rpc(at, parts, has_sockets, clock)?)),
            None => server.serve_sockets(parts, clock)?,
        }
        Ok(server)
    }

    fn serve_sockets(
        &mut self,
        parts: Vec<(FrontEnd, Partition)>,
        clock: Clock,
    ) -> Result<(), KvServerError> {
        let Threads::Sockets(threads) = &mut self.threads else { return Ok(()) };
        for (number, (front_end, partition)) in parts.into_iter().enumerate() {
            let stop = self.stop.clone();
            let thread = std::thread::Builder::new().name(format!("kv-{number}"));
            let thread = thread.spawn(move || sockets::serve(front_end, partition, clock, &stop));
            threads.push(thread.map_err(KvServerError::Thread)?);
        }
        Ok(())
    }

    /// Returns the address for RPC clients.
    #[must_use]
    pub fn rpc_address(&self) -> Option<SocketAddr> {
        match &self.threads {
            Threads::Rpc(server) => server.as_ref().map(Server::address),
            Threads::Sockets(_) => None,
        }
    }

    /// Returns the TCP addresses for memcached clients, in the order of the configuration.
    #[must_use]
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Returns the paths of the Unix sockets for memcached clients.
    pub fn unix_paths(&self) -> impl Iterator<Item = &Path> {
        self.unix.iter().map(PathBuf::as_path)
    }

    /// Returns whether all threads are running. [`Self::stop`] returns the error of a thread that failed.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        match &self.threads {
            Threads::Rpc(server) => server.as_ref().is_some_and(Server::is_serving),
            Threads::Sockets(threads) => !threads.iter().any(JoinHandle::is_finished),
        }
    }

    /// Stops the server: accepts no new connections, executes the commands received so far, then ends the threads.
    ///
    /// # Errors
    /// Returns the first failure of a thread.
    pub fn stop(mut self) -> Result<(), KvServerError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), KvServerError> {
        match &mut self.threads {
            Threads::Rpc(server) => server.take().map_or(Ok(()), stop_rpc),
            Threads::Sockets(threads) => {
                self.stop.request();
                let mut result = Ok(());
                for thread in threads.drain(..) {
                    let ended = thread.join().unwrap_or(Err(KvServerError::Panicked));
                    result = result.and(ended);
                }
                result
            }
        }
    }
}

impl Drop for KvServer {
    fn drop(&mut self) {
        // `stop` reports failures to callers that need them.
        let _ = self.join();
    }
}

/// Starts one RPC server thread for each partition, together with its front end.
fn serve_rpc(
    (address, nic): (SocketAddr, Nic),
    parts: Vec<(FrontEnd, Partition)>,
    has_sockets: bool,
    clock: Clock,
) -> Result<Server, KvServerError> {
    // The number was checked with the configuration.
    let threads = parts.len() as u16;
    let parts = Mutex::new(parts.into_iter().map(Some).collect::<Vec<_>>());
    let endpoint = move |responder: ResponderParts| {
        let thread = usize::from(responder.thread());
        let part = parts.lock().unwrap_or_else(PoisonError::into_inner)[thread].take();
        let (front_end, partition) = part.expect("a server starts each of its threads once");
        KvEndpoint::new(responder, partition, has_sockets.then_some(front_end), clock)
    };
    let server = Server::builder().address(address.to_string()).threads(threads).waiting(WAITING);
    Ok(server.start_endpoints(&nic, endpoint)?)
}

fn stop_rpc(server: Server) -> Result<(), KvServerError> {
    let was_serving = server.is_serving();
    server.drain();
    server.join();
    if was_serving { Ok(()) } else { Err(KvServerError::Ended) }
}
