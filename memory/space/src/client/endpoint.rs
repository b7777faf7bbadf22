//! The address space as an endpoint, for an application thread that drives others as well. One background thread per
//! node executes the calls to it.

use std::fs::File;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::{Nic, WaitStrategy};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Progress, WaitSet};

use super::Engine;
use super::buffers::Buffers;
use super::config::{
    ClientConfig, CompletedRequest, LinkStatus, OpenError, Request, SpaceStatus, SubmitError, Takeover,
    VolumeConfig,
};
use super::control;
use super::counters::PublishedStatus;
use super::node_client::NodeCallError;

/// Timeout of waiting for nodes: for the first one when opening, for all of them when closing.
const NODES_MAX_WAIT: Duration = Duration::from_secs(5);

/// Index of a node, and the result of a call to it.
type CallResult = (usize, Result<Vec<u8>, NodeCallError>);

/// An address space that one thread owns and drives. It accepts requests and returns completed ones.
pub struct MemoryEndpoint {
    engine: Engine,
    replies: WakeQueue<CallResult>,
    calls: Vec<mpsc::Sender<Vec<u8>>>,
    callers: Vec<JoinHandle<()>>,
    /// Provider for the threads of nodes that join.
    nic: Nic,
    /// Deadline for the nodes' replies while the endpoint is being opened or closed.
    deadline: Option<Nanos>,
    is_closing: bool,
    is_closed: bool,
    published: PublishedStatus,
}

impl MemoryEndpoint {
    /// Opens an address space of zeros over the nodes of the configuration. Waits until every node that replies is
    /// connected, at least one. Later calls must pass times of the same clock.
    ///
    /// # Errors
    /// Returns an error if a number is out of range, no node can be used, or a resource is not available.
    pub fn open(nic: &Nic, config: ClientConfig, clock: MonotonicClock) -> Result<Self, OpenError> {
        Self::drive(Engine::new(nic, config)?, nic, clock)
    }

    /// Opens the address space of an earlier process, or a new one; see [`Engine::resume`].
    ///
    /// # Errors
    /// Returns the errors of [`Engine::resume`] and [`MemoryEndpoint::open`].
    pub fn resume(
        nic: &Nic,
        config: ClientConfig,
        recovery_file: File,
        clock: MonotonicClock,
    ) -> Result<Self, OpenError> {
        Self::drive(Engine::resume(nic, config, recovery_file, clock.now())?, nic, clock)
    }

    /// Opens a volume that an earlier client left, or a new one; see [`Engine::claim`].
    ///
    /// # Errors
    /// Returns the errors of [`Engine::claim`] and [`MemoryEndpoint::open`].
    pub fn claim(
        nic: &Nic,
        config: ClientConfig,
        volume: &VolumeConfig,
        clock: MonotonicClock,
    ) -> Result<(Self, Takeover), OpenError> {
        let nodes = config.nodes.clone();
        let call = control::node_caller(nic, &nodes);
        let (engine, takeover) = Engine::claim(nic, config, volume, call, || clock.now())?;
        Ok((Self::drive(engine, nic, clock)?, takeover))
    }

    /// Returns whether this client has lost the volume; see [`Engine::is_fenced`].
    pub fn is_fenced(&self) -> bool {
        self.engine.is_fenced()
    }

    /// Returns the time until which no other client can hold the volume; see [`Engine::exclusive_until`].
    pub fn exclusive_until(&self) -> Nanos {
        self.engine.exclusive_until()
    }

    fn drive(engine: Engine, nic: &Nic, clock: MonotonicClock) -> Result<Self, OpenError> {
        let nodes = engine.config().nodes.clone();
        let mut endpoint = Self {
            engine,
            replies: WakeQueue::new()?,
            calls: Vec::new(),
            callers: Vec::new(),
            nic: nic.clone(),
            deadline: None,
            is_closing: false,
            is_closed: false,
            published: PublishedStatus::new(),
        };
        nodes.into_iter().try_for_each(|address| endpoint.start_caller(address))?;
        endpoint.wait_for_node(clock)?;
        Ok(endpoint)
    }

    /// Starts the thread that calls the next node.
    fn start_caller(&mut self, address: String) -> std::io::Result<()> {
        let node = self.calls.len();
        let (sender, receiver) = mpsc::channel();
        let (nic, replies) = (self.nic.clone(), self.replies.clone());
        let run = move || {
            control::run(&nic, &address, &receiver, |reply| replies.push((node, reply)));
        };
        // Added before the thread starts: the engine has the node already. Without a thread it never replies.
        self.calls.push(sender);
        self.callers.push(std::thread::Builder::new().name(format!("memory-node-{node}")).spawn(run)?);
        Ok(())
    }

    /// Adds a node if it is not known yet; see [`Engine::join`]. Returns whether it is new.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::join`]. Also fails if the operating system cannot start a thread.
    pub fn join(&mut self, address: &str) -> Result<bool, OpenError> {
        let is_new = !self.is_closing && self.engine.join(address)?;
        if is_new {
            self.start_caller(address.to_owned())?;
        }
        Ok(is_new)
    }

    fn wait_for_node(&mut self, clock: MonotonicClock) -> Result<(), OpenError> {
        let deadline = clock.now() + NODES_MAX_WAIT;
        self.deadline = Some(deadline);
        let mut driver = Driver::new(clock, WaitStrategy::EventBatch, Stop::new()?);
        driver.run_until(self, |endpoint| clock.now() >= deadline || endpoint.are_nodes_known())?;
        self.deadline = None;
        let nodes = self.engine.status().nodes;
        if nodes.iter().any(|node| node.link != LinkStatus::Down) {
            return Ok(());
        }
        let problem = |address, problem: Option<String>| problem.unwrap_or(format!("{address}: no answer"));
        let problems: Vec<String> =
            nodes.into_iter().map(|node| problem(node.address, node.problem)).collect();
        Err(OpenError::NoNode(problems.join("; ")))
    }

    /// Returns whether all nodes are connected, or at least one is and the others have failed.
    fn are_nodes_known(&self) -> bool {
        let nodes = self.engine.status().nodes;
        let up = nodes.iter().filter(|node| node.link != LinkStatus::Down).count();
        let is_known =
            |link: LinkStatus, problem: &Option<String>| link != LinkStatus::Down || problem.is_some();
        up == nodes.len() || (up > 0 && nodes.iter().all(|node| is_known(node.link, &node.problem)))
    }

    /// Returns the length of the address space in bytes.
    pub const fn size_bytes(&self) -> u64 {
        self.engine.config().size_bytes
    }

    pub(super) const fn caller_polling(&self) -> bool {
        self.engine.config().caller_polling
    }

    pub(super) const fn buffers(&self) -> &Buffers {
        self.engine.buffers()
    }

    /// Returns whether a request of `pages` pages would be accepted now.
    pub fn has_room(&self, pages: usize) -> bool {
        !self.is_closing && self.engine.has_room(pages)
    }

    /// Accepts a request; see [`Engine::submit`].
    ///
    /// # Errors
    /// Returns the errors of [`Engine::submit`].
    pub fn submit(&mut self, request: Request, now: Nanos) -> Result<(), SubmitError> {
        self.engine.submit(request, now)
    }

    /// Returns a completed request.
    pub fn next_completed(&mut self) -> Option<CompletedRequest> {
        self.engine.next_completed()
    }

    /// Returns whether a page has been written as far as this client knows. A page that has not been written is zero.
    pub fn is_written(&self, page: u64) -> bool {
        self.engine.is_written(page)
    }

    /// Returns whether a page is known to hold exactly these bytes: no write of it is in progress, none has failed
    /// since the last one that succeeded, and its checksum (or that of zeros) matches.
    pub fn holds(&self, page: u64, bytes: &[u8]) -> bool {
        self.engine.holds(page, bytes)
    }

    /// Returns the status of the address space.
    pub fn status(&self) -> SpaceStatus {
        self.engine.status()
    }

    /// Begins to return all slabs and leases. Requests in progress are discarded, and no others are accepted.
    pub fn close(&mut self, now: Nanos) {
        self.is_closing = true;
        self.deadline = Some(now + NODES_MAX_WAIT);
        self.engine.close();
    }

    /// Returns whether everything has been returned, or the time for that has expired.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl Endpoint for MemoryEndpoint {
    fn progress(&mut self, now: Nanos) -> Progress {
        let mut any = false;
        while let Some((node, reply)) = self.replies.pop() {
            any = true;
            self.engine.on_reply(node, reply, now);
        }
        let next = self.engine.progress(now);
        while let Some((node, bytes)) = self.engine.next_call(now) {
            any = true;
            // The thread runs as long as the endpoint exists. If it could not be started, the node never replies.
            let _ = self.calls[node].send(bytes);
        }
        self.published.update(now, || self.engine.status());
        let is_late = self.deadline.is_some_and(|deadline| now >= deadline);
        self.is_closed = self.is_closing && (is_late || self.engine.is_closed());
        let next = next.merge(Progress::Idle { until: self.deadline });
        if any { Progress::Again } else { next }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.replies.clear_wake();
        self.engine.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.replies.fd());
        self.engine.wait_set(set);
    }
}

impl Drop for MemoryEndpoint {
    fn drop(&mut self) {
        // The threads end when their channels are closed.
        self.calls.clear();
        // A thread that panicked has already printed its message.
        self.callers.drain(..).for_each(|caller| drop(caller.join()));
    }
}
