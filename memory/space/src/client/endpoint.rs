//! The address space as an endpoint: for a thread of somebody's own, which has other things to do beside it. Threads of
//! ours ask the nodes, one for each.

use std::fs::File;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::{Nic, Waiting};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Next, Provider, WaitSet};

use super::Engine;
use super::buffers::Buffers;
use super::config::{
    ClientConfig, Ended, LinkStatus, OpenError, Refused, Request, SpaceStatus, Takeover, VolumeConfig,
};
use super::control;
use super::counters::PublishedStatus;
use super::donor::CallFailed;

/// How long opening waits for a first node, and closing for the last.
const NODES_MAX_WAIT: Duration = Duration::from_secs(5);

/// What a node answered, or why it did not.
type Answered = (usize, Result<Vec<u8>, CallFailed>);

/// An address space that one thread owns and drives: requests in, requests that are over out.
pub struct MemoryEndpoint {
    engine: Engine,
    answers: WakeQueue<Answered>,
    calls: Vec<mpsc::Sender<Vec<u8>>>,
    callers: Vec<JoinHandle<()>>,
    /// For those that join.
    provider: Arc<dyn Provider>,
    /// It is being opened, or closed: until then nodes may answer.
    wait_by: Option<Nanos>,
    is_closing: bool,
    is_closed: bool,
    published: PublishedStatus,
}

impl MemoryEndpoint {
    /// Opens an address space, all zeros, over the nodes of the configuration; waits until every node that answers is
    /// there, and at least one is. Times that it is given later are of the same clock.
    ///
    /// # Errors
    /// If a number is impossible, no node can be used, or resources cannot be had.
    pub fn open(
        provider: &Arc<dyn Provider>,
        config: ClientConfig,
        clock: MonotonicClock,
    ) -> Result<Self, OpenError> {
        Self::drive(Engine::new(&Nic::open(&**provider)?, config)?, provider, clock)
    }

    /// Opens the address space that another process had, or a new one; see [`Engine::resume`].
    ///
    /// # Errors
    /// As there, and as [`MemoryEndpoint::open`].
    pub fn resume(
        provider: &Arc<dyn Provider>,
        config: ClientConfig,
        kept: File,
        clock: MonotonicClock,
    ) -> Result<Self, OpenError> {
        Self::drive(Engine::resume(&Nic::open(&**provider)?, config, kept, clock.now())?, provider, clock)
    }

    /// Opens a volume that an earlier client left, or a new one; see [`Engine::claim`].
    ///
    /// # Errors
    /// As there, and as [`MemoryEndpoint::open`].
    pub fn claim(
        provider: &Arc<dyn Provider>,
        config: ClientConfig,
        volume: &VolumeConfig,
        clock: MonotonicClock,
    ) -> Result<(Self, Takeover), OpenError> {
        let (nic, nodes) = (Nic::open(&**provider)?, config.nodes.clone());
        let ask = control::asker(&**provider, &nodes);
        let (engine, takeover) = Engine::claim(&nic, config, volume, ask, || clock.now())?;
        Ok((Self::drive(engine, provider, clock)?, takeover))
    }

    /// Whether the volume is lost to this client; see [`Engine::is_fenced`].
    pub fn is_fenced(&self) -> bool {
        self.engine.is_fenced()
    }

    /// Until when nobody else can have the volume; see [`Engine::held_until`].
    pub fn held_until(&self) -> Nanos {
        self.engine.held_until()
    }

    fn drive(engine: Engine, provider: &Arc<dyn Provider>, clock: MonotonicClock) -> Result<Self, OpenError> {
        let nodes = engine.config().nodes.clone();
        let mut endpoint = Self {
            engine,
            answers: WakeQueue::new()?,
            calls: Vec::new(),
            callers: Vec::new(),
            provider: Arc::clone(provider),
            wait_by: None,
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
        let (provider, answers) = (Arc::clone(&self.provider), self.answers.clone());
        let run = move || {
            control::run(&provider, &address, &receiver, |answer| answers.push((node, answer)));
        };
        // Without a thread it is a node that does not answer.
        self.calls.push(sender);
        self.callers.push(std::thread::Builder::new().name(format!("memory-node-{node}")).spawn(run)?);
        Ok(())
    }

    /// From now on there is another node, if it is not known; see [`Engine::join`]. Returns whether it is new.
    ///
    /// # Errors
    /// As there, or if the system gives no thread.
    pub fn join(&mut self, address: &str) -> Result<bool, OpenError> {
        let is_new = !self.is_closing && self.engine.join(address)?;
        if is_new {
            self.start_caller(address.to_owned())?;
        }
        Ok(is_new)
    }

    fn wait_for_node(&mut self, clock: MonotonicClock) -> Result<(), OpenError> {
        let by = clock.now() + NODES_MAX_WAIT;
        self.wait_by = Some(by);
        let mut driver = Driver::new(clock, Waiting::EventBatch, Stop::new()?);
        driver.run_until(self, |endpoint| clock.now() >= by || endpoint.are_nodes_known())?;
        self.wait_by = None;
        let nodes = self.engine.status().nodes;
        if nodes.iter().any(|node| node.link != LinkStatus::Down) {
            return Ok(());
        }
        let problem = |address, problem: Option<String>| problem.unwrap_or(format!("{address}: no answer"));
        let problems: Vec<String> =
            nodes.into_iter().map(|node| problem(node.address, node.problem)).collect();
        Err(OpenError::NoNode(problems.join("; ")))
    }

    /// Whether all nodes are there, or at least one is and the others have said why not.
    fn are_nodes_known(&self) -> bool {
        let nodes = self.engine.status().nodes;
        let up = nodes.iter().filter(|node| node.link != LinkStatus::Down).count();
        let is_known =
            |link: LinkStatus, problem: &Option<String>| link != LinkStatus::Down || problem.is_some();
        up == nodes.len() || (up > 0 && nodes.iter().all(|node| is_known(node.link, &node.problem)))
    }

    /// Bytes of the address space.
    pub const fn size_bytes(&self) -> u64 {
        self.engine.config().size_bytes
    }

    pub(super) const fn callers_drive(&self) -> bool {
        self.engine.config().callers_drive
    }

    pub(super) const fn buffers(&self) -> &Buffers {
        self.engine.buffers()
    }

    /// Whether a request of so many pages would be taken now.
    pub fn has_room(&self, pages: usize) -> bool {
        !self.is_closing && self.engine.has_room(pages)
    }

    /// Takes a request; see [`Engine::submit`].
    ///
    /// # Errors
    /// As there.
    pub fn submit(&mut self, request: Request, now: Nanos) -> Result<(), Refused> {
        self.engine.submit(request, now)
    }

    /// A request that is over.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.engine.next_ended()
    }

    /// Whether a page has been written, for all that is known here; a page that has not is zero.
    pub fn is_written(&self, page: u64) -> bool {
        self.engine.is_written(page)
    }

    /// Whether a page is known to hold exactly these bytes: no write of it is under way, none has failed since, and the
    /// checksum of what was written last, or of zeros, is theirs.
    pub fn holds(&self, page: u64, bytes: &[u8]) -> bool {
        self.engine.holds(page, bytes)
    }

    /// How it stands.
    pub fn status(&self) -> SpaceStatus {
        self.engine.status()
    }

    /// Gives everything back. Requests that are not over are forgotten; nothing is taken any more.
    pub fn close(&mut self, now: Nanos) {
        self.is_closing = true;
        self.wait_by = Some(now + NODES_MAX_WAIT);
        self.engine.close();
    }

    /// Whether everything was given back, or nodes had their time to take it.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl Endpoint for MemoryEndpoint {
    fn progress(&mut self, now: Nanos) -> Next {
        let mut any = false;
        while let Some((node, answer)) = self.answers.pop() {
            any = true;
            self.engine.answered(node, answer, now);
        }
        let next = self.engine.progress(now);
        while let Some((node, bytes)) = self.engine.next_call(now) {
            any = true;
            // Its thread lives as long as we do, if it could be had.
            let _ = self.calls[node].send(bytes);
        }
        self.published.update(now, || self.engine.status());
        let is_late = self.wait_by.is_some_and(|by| now >= by);
        self.is_closed = self.is_closing && (is_late || self.engine.is_closed());
        let next = next.merge(Next::Idle { until: self.wait_by });
        if any { Next::Again } else { next }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.answers.clear_wake();
        self.engine.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.answers.fd());
        self.engine.wait_set(set);
    }
}

impl Drop for MemoryEndpoint {
    fn drop(&mut self) {
        // They end when nobody can ask them any more.
        self.calls.clear();
        // A panic was printed by its thread.
        self.callers.drain(..).for_each(|caller| drop(caller.join()));
    }
}
