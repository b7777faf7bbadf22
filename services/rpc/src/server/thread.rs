//! One server thread: a responder, the endpoints that run next to it, and the bootstrap connections of its clients.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use farcall_drive::{BootstrapEvent, BootstrapId, BootstrapSender, Driver, Pollers, pin_to_core};
use farcall_link::bootstrap::PostHandshakeMessage;
use farcall_link::{Nic, WaitStrategy};
use farcall_verbs::{
    Endpoint, Error, MonotonicClock, Nanos, Progress, Result, WaitSet, WakeProbe, with_sources,
};

use super::Shared;
use crate::config::ResponderConfig;
use crate::responder::{ConnectionId, Handler, Responder, ResponderEvent};

/// Parameters of a thread.
pub(super) struct Start {
    pub parts: ResponderParts,
    pub waiting: WaitStrategy,
    pub pollers: Option<Pollers>,
    pub core: Option<usize>,
    pub shared: Arc<Shared>,
    pub listener: BootstrapSender,
}

/// The endpoint of a server thread: a [`Responder`] alone, or an application's endpoint that contains one, for example
/// together with the sockets of other protocols.
pub trait ThreadEndpoint: Endpoint {
    /// The service.
    type Handler: Handler;

    /// Returns the responder.
    fn responder(&mut self) -> &mut Responder<Self::Handler, MonotonicClock>;

    /// Called when the server drains: the endpoint must begin nothing new. The server itself drains the responder.
    fn drain(&mut self, _now: Nanos) {}

    /// Returns whether, after [`ThreadEndpoint::drain`], all work outside of the responder is finished.
    fn is_drained(&self) -> bool {
        true
    }
}

impl<H: Handler> ThreadEndpoint for Responder<H, MonotonicClock> {
    type Handler = H;

    #[inline]
    fn responder(&mut self) -> &mut Self {
        self
    }
}

/// The parts of a thread's responder, without its service.
pub struct ResponderParts {
    pub(super) nic: Nic,
    pub(super) config: ResponderConfig,
    pub(super) incarnation: u64,
    pub(super) clock: MonotonicClock,
}

impl ResponderParts {
    /// Returns the index of the server thread.
    pub fn thread(&self) -> u16 {
        self.config.thread
    }

    /// Creates the responder of this thread.
    ///
    /// # Errors
    /// Returns the errors of [`Responder::new`].
    pub fn with<H: Handler>(self, handler: H) -> Result<Responder<H, MonotonicClock>> {
        Responder::new(self.nic, self.config, self.incarnation, handler, self.clock)
    }
}

/// Runs a thread until it ends. First reports whether it started.
pub(super) fn run<E: ThreadEndpoint>(
    start: Start,
    make: impl FnOnce(ResponderParts) -> Result<E>,
    started: &mpsc::Sender<Result<(), Error>>,
) {
    let Start { parts, waiting, pollers, core, shared, listener } = start;
    if let Some(core) = core
        && let Err(error) = pin_to_core(core)
    {
        let _ = started.send(Err(Error::os("pin thread", format!("core {core}"), error)));
        return;
    }
    let (thread, clock) = (usize::from(parts.thread()), parts.clock);
    let endpoint = match make(parts) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let stop = shared.stop.clone();
    let mut thread_loop =
        ServerThread { endpoint, thread, shared, listener, connections: HashMap::new(), draining: false };
    let _ = started.send(Ok(()));
    let mut driver = Driver::with_pollers(clock, waiting, pollers, stop);
    // An error here means that the system cannot sleep on a descriptor, so the thread cannot continue.
    if let Err(error) = driver.run_until(&mut thread_loop, ServerThread::is_drained) {
        tracing::error!(thread, "the server thread ended: {}", with_sources(&error));
    }
    thread_loop.forward_events();
}

struct ServerThread<E> {
    endpoint: E,
    thread: usize,
    shared: Arc<Shared>,
    listener: BootstrapSender,
    connections: HashMap<BootstrapId, ConnectionId>,
    draining: bool,
}

impl<E: ThreadEndpoint> ServerThread<E> {
    #[inline]
    fn is_drained(&mut self) -> bool {
        self.endpoint.responder().is_drained() && self.endpoint.is_drained()
    }

    #[cold]
    fn take_events(&mut self, now: Nanos) {
        while let Some(event) = self.shared.inboxes[self.thread].pop() {
            match event {
                BootstrapEvent::Hello(client, hello) => match self.endpoint.responder().accept(&hello, now) {
                    Ok((id, welcome)) => {
                        tracing::info!(
                            thread = self.thread,
                            connection = id.0,
                            preset = hello.plan.preset().map_or("", |preset| preset.name),
                            is_resumed = welcome.resumed.is_some(),
                            "a client connected"
                        );
                        self.connections.insert(client, id);
                        self.listener.welcome(client, &welcome);
                    }
                    Err(refusal) => {
                        tracing::info!(thread = self.thread, "{refusal}");
                        self.listener.refuse(client, &refusal);
                    }
                },
                BootstrapEvent::PostHandshake(client, PostHandshakeMessage::CloseNotify) => {
                    self.hang_up(client, false, now)
                }
                BootstrapEvent::PostHandshake(..) => {}
                BootstrapEvent::HungUp(client) => self.hang_up(client, true, now),
            }
        }
    }

    fn hang_up(&mut self, client: BootstrapId, may_come_back: bool, now: Nanos) {
        if let Some(id) = self.connections.remove(&client) {
            self.endpoint.responder().hang_up(id, may_come_back, now);
        }
    }

    fn forward_events(&mut self) {
        while let Some(ResponderEvent::Closed { connection, why, refusal }) =
            self.endpoint.responder().poll_event()
        {
            tracing::info!(thread = self.thread, connection = connection.0, "a connection ended: {why}");
            let Some(client) =
                self.connections.iter().find(|(_, id)| **id == connection).map(|(client, _)| *client)
            else {
                continue;
            };
            self.connections.remove(&client);
            match refusal {
                Some(refusal) => self.listener.refuse(client, &refusal),
                None => self.listener.close(client),
            }
        }
    }

    #[cold]
    fn begin_drain(&mut self, now: Nanos) {
        self.draining = true;
        tracing::info!(thread = self.thread, connections = self.connections.len(), "drains");
        self.endpoint.responder().drain();
        self.endpoint.drain(now);
        for client in self.connections.keys() {
            self.listener.notice(*client, PostHandshakeMessage::GoingAway);
        }
    }
}

impl<E: ThreadEndpoint> Endpoint for ServerThread<E> {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        if self.shared.inboxes[self.thread].has_any() {
            self.take_events(now);
        }
        let next = self.endpoint.progress(now);
        if next != Progress::Again {
            // Rare events are checked only when the thread is idle.
            self.forward_events();
            if !self.draining && self.shared.drain.load(Ordering::Acquire) {
                self.begin_drain(now);
                return Progress::Again;
            }
        }
        next
    }

    fn arm(&mut self) -> Result<()> {
        // Before the last poll: a drain that is requested after this makes the descriptor readable again.
        self.shared.inboxes[self.thread].clear_wake();
        self.endpoint.arm()
    }

    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        self.endpoint.wake_probe()
    }

    fn arm_delegated(&mut self) -> Result<()> {
        self.shared.inboxes[self.thread].clear_wake();
        self.endpoint.arm_delegated()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.shared.inboxes[self.thread].fd());
        self.endpoint.wait_set(set);
    }

    #[inline]
    fn poll_weight(&self) -> u32 {
        self.endpoint.poll_weight()
    }
}
