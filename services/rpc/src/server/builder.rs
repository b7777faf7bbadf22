//! Configuring and starting a server.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};

use farcall_drive::{AuthorizeUser, ListenConfig, Listener, Pollers, Stop, WakeQueue, on_termination};
use farcall_link::{Nic, WaitStrategy, os_random};
use farcall_verbs::{MonotonicClock, with_sources};
use thiserror::Error;

use super::thread::{ResponderParts, Start, ThreadEndpoint, run};
use super::{Server, Shared};
use crate::config::ResponderConfig;
use crate::responder::Handler;

/// Why a server did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A verbs resource could not be allocated.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// A thread, descriptor or random number could not be obtained.
    #[error("cannot start a server thread")]
    System(#[from] io::Error),
}

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    address: String,
    threads: u16,
    cores: Vec<usize>,
    waiting: WaitStrategy,
    pollers: Option<Pollers>,
    config: ResponderConfig,
    listen: ListenConfig,
    drain_on_signals: bool,
}

impl ServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            address: "127.0.0.1:0".into(),
            threads: 1,
            cores: Vec::new(),
            waiting: WaitStrategy::Adaptive { max_retry: 20_000 },
            pollers: None,
            config: ResponderConfig::default(),
            listen: ListenConfig::default(),
            drain_on_signals: false,
        }
    }

    /// Sets the address that clients connect to; by default a free port on the loopback interface. Any host that can
    /// reach the address can make calls: use other addresses only on trusted networks.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Sets the number of threads, each with its own service and connections. One by default.
    #[must_use]
    pub fn threads(mut self, threads: u16) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the cores that threads are pinned to, in rotation. None by default.
    #[must_use]
    pub fn cores(mut self, cores: impl Into<Vec<usize>>) -> Self {
        self.cores = cores.into();
        self
    }

    /// Sets how threads wait. By default they poll for a while and then sleep.
    #[must_use]
    pub fn waiting(mut self, waiting: WaitStrategy) -> Self {
        self.waiting = waiting;
        self
    }

    /// Sets the pollers that poll for requests while threads sleep (BPEV). By default there are none: clients wake a
    /// sleeping thread.
    #[must_use]
    pub fn pollers(mut self, pollers: Pollers) -> Self {
        self.pollers = Some(pollers);
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn config(mut self, config: ResponderConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the limits of the bootstrap listener.
    #[must_use]
    pub fn listen(mut self, listen: ListenConfig) -> Self {
        self.listen = listen;
        self
    }

    /// Drains on SIGTERM or SIGINT; a second signal terminates the program at once.
    #[must_use]
    pub fn drain_on_signals(mut self) -> Self {
        self.drain_on_signals = true;
        self
    }

    /// Starts the server. `service` creates the service of each thread, in that thread.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or resources cannot be allocated.
    pub fn start<H, F>(self, nic: &Nic, service: F) -> Result<Server, ServerError>
    where
        H: Handler + 'static,
        F: Fn(u16) -> H + Send + Sync + 'static,
    {
        self.start_endpoints(nic, move |parts| {
            let handler = service(parts.thread());
            parts.with(handler)
        })
    }

    /// Starts the server. `endpoint` creates the endpoint of each thread, in that thread: a responder together with
    /// other endpoints.
    ///
    /// # Errors
    /// Returns the errors of [`ServerBuilder::start`].
    pub fn start_endpoints<E, F>(self, nic: &Nic, endpoint: F) -> Result<Server, ServerError>
    where
        E: ThreadEndpoint + 'static,
        F: Fn(ResponderParts) -> farcall_verbs::Result<E> + Send + Sync + 'static,
    {
        let nic = nic.clone();
        let incarnation = u64::from_le_bytes(os_random::<8>()?);
        let inboxes = (0..self.threads).map(|_| WakeQueue::new()).collect::<io::Result<Vec<_>>>()?;
        let failed = |source| ServerError::Listen { address: self.address.clone(), source };
        let address = resolve(&self.address).map_err(failed)?;
        let context = Arc::clone(nic.context());
        let judge: AuthorizeUser =
            Box::new(move |user| context.check_user(user).map_err(|error| with_sources(&error)));
        let listener =
            Listener::start(address, inboxes.clone(), self.listen.clone(), judge).map_err(failed)?;
        let shared = Arc::new(Shared { drain: AtomicBool::new(false), inboxes, stop: Stop::new()? });
        let address = listener.address();
        let sender = listener.sender();
        let mut server =
            Server { listener: Some(listener), shared: Arc::clone(&shared), threads: Vec::new(), address };
        let endpoint = Arc::new(endpoint);
        for thread in 0..self.threads {
            let config = self.config.clone().threads(self.threads).thread(thread);
            let parts =
                ResponderParts { nic: nic.clone(), config, incarnation, clock: MonotonicClock::new() };
            let start = Start {
                parts,
                waiting: self.waiting,
                pollers: self.pollers.clone(),
                core: self.cores.get(usize::from(thread) % self.cores.len().max(1)).copied(),
                shared: Arc::clone(&shared),
                listener: sender.clone(),
            };
            let (started, has_started) = mpsc::channel();
            let endpoint = Arc::clone(&endpoint);
            let name = format!("farcall-{thread}");
            let handle = std::thread::Builder::new().name(name).spawn(move || {
                run(start, |parts| endpoint(parts), &started);
            })?;
            server.threads.push(handle);
            // On an error, dropping the server stops the threads that have already started.
            has_started.recv().map_err(|_| io::Error::other("a server thread ended at its start"))??;
        }
        if self.drain_on_signals {
            let drain = server.drain_handle();
            on_termination(move || drain.drain())?;
        }
        Ok(server)
    }
}

fn resolve(address: &str) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("the name has no address"))
}
