//! Calls of many threads over few connections (RDMA communication patterns, section 4.1, design 2).
//!
//! The dispatcher is a thread that owns one connection to each server thread. Each thread that makes calls has a local
//! mailbox, in which it enqueues calls and receives their outcomes. The number of connections is therefore independent
//! of the number of threads. Calls of all threads share one window, and with [`ClientOptions::batch`] they are sent in
//! common batches. The costs are two transfers between threads and a copy: the paper's requesters compose their
//! messages in registered memory.

mod connection;
mod mailbox;
mod requester;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use farcall_drive::{Driver, IdlePolicy, Parker, Stop, WakeQueue};
use farcall_link::{ConnectionModel, Nic};
use farcall_shm::fork::Generation;
use farcall_verbs::{Endpoint, Error, MonotonicClock, Nanos, Progress, Result, WaitSet};

use self::connection::Connection;
use self::mailbox::{DispatcherEnd, LocalCall, Outcomes, mailbox};
pub use self::requester::Requester;
use super::ClientOptions;
use super::erased::{AnyCaller, any_caller};
use super::preset_fallback::PresetFallback;
use super::session::Session;
use super::shared::SharedCall;
use crate::error::{Broken, CallError, ConnectError};

/// Maximum number of requests taken from one mailbox before the next one is polled.
const REQUESTS_PER_POLL: usize = 16;

/// A server thread that a dispatcher connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerThread {
    /// The server's bootstrap address.
    pub address: String,
    /// Index of the thread.
    pub thread: u16,
}

/// The thread that makes the calls of many threads. Dropping it ends the thread; calls in flight end with an unknown
/// outcome.
///
/// ```
/// # use farcall_rpc::{Call, ClientOptions, Dispatcher, Reply, Server, ServerThread};
/// # let nic = farcall_link::Nic::open(&farcall_softnic::SoftNic::new())?;
/// # let server = Server::builder().start(&nic, |_| |call: &Call<'_>, reply: &mut Reply<'_>| {
/// #     reply.extend_from_slice(call.payload());
/// #     Ok(())
/// # })?;
/// let servers = [ServerThread { address: server.address().to_string(), thread: 0 }];
/// let dispatcher = Dispatcher::start(&nic, &servers, ClientOptions::default())?;
/// std::thread::scope(|threads| {
///     for _ in 0..2 {
///         let mut requester = dispatcher.requester(16)?;
///         threads.spawn(move || {
///             let mut reply = Vec::new();
///             requester.call(0, 1, b"hello", &mut reply).map(|()| assert_eq!(reply, b"hello"))
///         });
///     }
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dispatcher {
    joining: WakeQueue<DispatcherEnd>,
    sleeper: Arc<Parker>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    clock: MonotonicClock,
    options: ClientOptions,
    connections: u16,
    made_in: Generation,
}

farcall_verbs::opaque_debug!(Dispatcher);

impl Dispatcher {
    /// Connects to each server thread, in this order, and starts the dispatcher thread. A server thread that is listed
    /// several times gets that number of connections. The requester specifies the connection of each call.
    ///
    /// # Errors
    /// Returns the errors of [`crate::Client::connect`], or an error if no thread or descriptor can be allocated.
    ///
    /// # Panics
    /// Panics if there are more than 65,535 server threads.
    pub fn start(
        nic: &Nic,
        servers: &[ServerThread],
        mut options: ClientOptions,
    ) -> std::result::Result<Self, ConnectError> {
        options.config.plan.connections = ConnectionModel::Dispatcher;
        let connections = u16::try_from(servers.len()).expect("at most 65,535 server threads");
        let os = |what: &'static str| move |e| ConnectError::Verbs(Error::os("start dispatcher", what, e));
        let sleeper = Arc::new(Parker::new().map_err(os("a descriptor to sleep on"))?);
        let joining = WakeQueue::new().map_err(os("a descriptor for the queue of new mailboxes"))?;
        let stop = Stop::new().map_err(os("a descriptor for the stop"))?;
        let clock = MonotonicClock::new();
        let sessions = servers.iter().map(|server| {
            let presets = PresetFallback::new(nic, &server.address, options.clone().thread(server.thread))?;
            let connect = |options| connect(nic, &server.address, options, clock);
            presets.run(connect).map(|(session, _)| session)
        });
        let sessions = sessions.collect::<std::result::Result<Vec<_>, ConnectError>>()?;
        let mut driver = Driver::new(clock, options.waiting(), stop.clone());
        let (queue, own, ended) = (joining.clone(), Arc::clone(&sleeper), stop.clone());
        let run = move || {
            let connections = sessions.into_iter().map(|session| Connection::new(session, Arc::clone(&own)));
            let connections = connections.collect();
            let mut task = Task { connections, mailboxes: Vec::new(), joining: queue, sleeper: own };
            // The task ends if the system cannot sleep on descriptors; requesters find the mailboxes abandoned.
            let _ = driver.run(&mut task);
            ended.request();
            task.close();
        };
        let thread = std::thread::Builder::new().name("farcall dispatch".into()).spawn(run);
        let thread = Some(thread.map_err(os("its thread"))?);
        let made_in = Generation::current();
        Ok(Self { joining, sleeper, stop, thread, clock, options, connections, made_in })
    }

    /// Creates a mailbox for a thread that makes calls, with up to `window` calls in flight.
    ///
    /// # Errors
    /// Returns an error if the system has no free descriptor, or the dispatcher thread has ended because it could not
    /// sleep.
    pub fn requester(&self, window: usize) -> std::io::Result<Requester> {
        let (end, other) = mailbox(window)?;
        self.joining.push(other);
        // The dispatcher thread sets the stop flag before it drains this queue for the last time.
        if self.stop.is_requested() {
            return Err(std::io::Error::other("the dispatcher's thread has ended: start another one"));
        }
        Ok(Requester {
            end,
            dispatcher: Arc::clone(&self.sleeper),
            clock: self.clock,
            call_timeout: self.options.call_timeout,
            idle_policy: IdlePolicy::new(self.options.config.plan.waiting),
            made_in: self.made_in,
            connections: self.connections,
            spare: vec![Vec::new(); window],
            pending: Vec::with_capacity(window),
            last_call: 0,
            lent: Vec::new(),
        })
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        let thread = self.thread.take();
        // In a forked child the thread and its descriptors belong to the parent.
        if self.made_in.is_inherited() {
            std::mem::forget(thread);
            return;
        }
        self.stop.request();
        if let Some(thread) = thread {
            // A panic of the thread has been printed on standard error.
            let _ = thread.join();
        }
    }
}

fn connect(
    nic: &Nic,
    address: &str,
    options: ClientOptions,
    clock: MonotonicClock,
) -> std::result::Result<Session<dyn AnyCaller>, ConnectError> {
    let caller = any_caller(nic.clone(), options.config.clone())?;
    let timeout = options.connect_timeout;
    let mut session = Session::new(caller, address.to_owned(), options);
    // Requesters compute deadlines with this clock.
    session.clock = clock;
    session.connect(timeout)?;
    session.init_profile();
    Ok(session)
}

/// A mailbox in the dispatcher thread.
struct Mailbox {
    requests: rtrb::Consumer<mailbox::Request>,
    outcomes: Rc<RefCell<Outcomes>>,
}

impl Mailbox {
    /// Closes the mailbox. The calls that it contains are not sent.
    fn close(mut self) {
        let requests = std::iter::from_fn(|| self.requests.pop().ok()).collect::<Vec<_>>();
        // Before the requester receives the first outcome.
        drop(self.requests);
        for request in requests {
            let outcomes = Rc::clone(&self.outcomes);
            LocalCall { request, outcomes }.end(Err(CallError::NotSent(Broken::Closed)));
        }
    }

    /// Returns whether the requester no longer exists.
    fn is_abandoned(&self) -> bool {
        self.requests.is_abandoned() && self.requests.is_empty()
    }

    /// Passes a bounded number of calls to their connections. Returns whether there were any.
    fn take(&mut self, connections: &mut [Connection]) -> bool {
        for taken in 0..REQUESTS_PER_POLL {
            let Ok(request) = self.requests.pop() else { return taken > 0 };
            let connection = &mut connections[usize::from(request.to)];
            connection.shared.push(LocalCall { request, outcomes: Rc::clone(&self.outcomes) });
        }
        true
    }
}

/// The endpoint that the dispatcher thread runs.
struct Task {
    connections: Vec<Connection>,
    mailboxes: Vec<Mailbox>,
    joining: WakeQueue<DispatcherEnd>,
    sleeper: Arc<Parker>,
}

impl Task {
    /// Ends all calls, after all mailboxes are closed.
    fn close(mut self) {
        self.take_new_mailboxes();
        self.mailboxes.into_iter().for_each(Mailbox::close);
        self.connections.iter_mut().for_each(Connection::close);
    }

    #[cold]
    fn take_new_mailboxes(&mut self) {
        self.mailboxes.retain(|mailbox| !mailbox.is_abandoned());
        while let Some(DispatcherEnd { requests, outcomes }) = self.joining.pop() {
            self.mailboxes.push(Mailbox { requests, outcomes: Rc::new(RefCell::new(outcomes)) });
        }
    }
}

impl Endpoint for Task {
    fn progress(&mut self, now: Nanos) -> Progress {
        if self.joining.has_any() {
            self.take_new_mailboxes();
        }
        let mut next = Progress::IDLE;
        for mailbox in &mut self.mailboxes {
            if mailbox.take(&mut self.connections) {
                next = Progress::Again;
            }
        }
        self.connections.iter_mut().fold(next, |next, connection| next.merge(connection.progress(now)))
    }

    fn arm(&mut self) -> Result<()> {
        self.mailboxes.retain(|mailbox| !mailbox.is_abandoned());
        self.joining.clear_wake();
        self.sleeper.arm();
        self.connections.iter_mut().try_for_each(Connection::arm)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.joining.fd());
        set.insert(self.sleeper.fd());
        self.connections.iter().for_each(|connection| connection.wait_set(set));
    }

    fn prefers_sleep(&self) -> bool {
        self.connections.iter().all(Endpoint::prefers_sleep)
    }
}
