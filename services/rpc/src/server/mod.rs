//! A running server: threads, each with its endpoint and its service, behind one bootstrap address.

#[cfg(feature = "tokio")]
mod asynchronous;
mod builder;
mod thread;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use farcall_drive::{BootstrapEvent, Listener, Stop, WakeQueue};

#[cfg(all(feature = "tokio", feature = "service"))]
pub(crate) use asynchronous::answer_by_task;
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncHandler, OwnedCall};
pub use builder::{ServerBuilder, ServerError};
pub use thread::{ResponderParts, ThreadEndpoint};

/// A running server. Dropping it stops it at once; [`Server::drain`] and [`Server::join`] end it gracefully.
pub struct Server {
    listener: Option<Listener>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
}

farcall_verbs::opaque_debug!(Server { address });

/// Shared state to stop or drain a server from any thread.
struct Shared {
    drain: AtomicBool,
    inboxes: Vec<WakeQueue<BootstrapEvent>>,
    stop: Stop,
}

/// Drains a server from another thread.
#[derive(Clone)]
pub struct DrainHandle(Arc<Shared>);

farcall_verbs::opaque_debug!(DrainHandle);

impl DrainHandle {
    /// See [`Server::drain`].
    pub fn drain(&self) {
        self.0.drain.store(true, Ordering::Release);
        // The threads may sleep: a wake-up without an event makes them check the flag.
        for inbox in &self.0.inboxes {
            inbox.wake();
        }
    }
}

impl Server {
    /// Returns a builder for a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::new()
    }

    /// Returns the address that clients connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a graceful shutdown. The server accepts no new connections, finishes the calls received so far, and
    /// replies to later ones with "going away" without executing them. Then the threads end.
    pub fn drain(&self) {
        if let Some(listener) = &self.listener {
            listener.stop_accepting();
        }
        self.drain_handle().drain();
    }

    /// Returns a handle that drains this server from another thread, such as that of a signal handler.
    pub fn drain_handle(&self) -> DrainHandle {
        DrainHandle(Arc::clone(&self.shared))
    }

    /// Returns whether all threads are running. A thread that ended without a drain has printed the reason on standard
    /// error.
    pub fn is_serving(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits until the threads have ended, after [`Server::drain`].
    pub fn join(mut self) {
        self.join_threads();
    }

    fn join_threads(&mut self) {
        for thread in self.threads.drain(..) {
            // The thread has printed a panic outside of a handler; the other threads end nevertheless.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.request();
        self.join_threads();
        self.listener = None;
    }
}
