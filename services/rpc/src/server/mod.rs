//! A server as users start it: threads, each with its endpoint and its service, behind one bootstrap address.

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

/// What ends a server, from anywhere.
struct Shared {
    drain: AtomicBool,
    inboxes: Vec<WakeQueue<BootstrapEvent>>,
    stop: Stop,
}

/// Drains a server from another thread.
#[derive(Clone)]
pub struct DrainHandle(Arc<Shared>);

impl DrainHandle {
    /// See [`Server::drain`].
    pub fn drain(&self) {
        self.0.drain.store(true, Ordering::Release);
        // The threads may sleep: a wake-up with nothing is enough.
        for inbox in &self.0.inboxes {
            inbox.wake();
        }
    }
}

impl Server {
    /// Starts to describe a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::new()
    }

    /// Where clients connect.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a graceful end: no new connections; what came is finished; what comes is answered "going away", never
    /// executed; then the threads end.
    pub fn drain(&self) {
        if let Some(listener) = &self.listener {
            listener.stop_accepting();
        }
        self.drain_handle().drain();
    }

    /// What drains this server from elsewhere: a signal handler's thread, say.
    pub fn drain_handle(&self) -> DrainHandle {
        DrainHandle(Arc::clone(&self.shared))
    }

    /// Whether all threads run. One that ended without a drain has said why on standard error.
    pub fn is_serving(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits until the threads have ended, after [`Server::drain`].
    pub fn join(mut self) {
        self.join_threads();
    }

    fn join_threads(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic outside of a handler was printed by its thread; the others end all the same.
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
