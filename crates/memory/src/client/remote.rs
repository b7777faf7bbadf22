//! The address space as programs use it: reads and writes that wait, from any thread. One thread of its own runs the
//! engine, renews leases and makes up for nodes that are lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::{Nic, Waiting};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next, Provider, WaitSet};

use super::config::{ClientConfig, IoError, LinkStatus, OpenError, Request, SpaceStatus, Work};
use super::control;
use super::donor::CallFailed;
use super::{Engine, PAGE_BYTES};

/// How long opening waits for a first node, and closing for the last.
const NODES_MAX_WAIT: Duration = Duration::from_secs(5);
/// Pages of one piece of a long request.
const PIECE_PAGES: usize = 255;
/// Empty looks before the thread sleeps.
const POLLS: u32 = 2_000;

type Result<T, E = IoError> = std::result::Result<T, E>;

/// A request, and who waits for it.
struct Asked {
    offset: u64,
    work: Work,
    ended: mpsc::SyncSender<Result<Vec<u8>>>,
}

/// What the engine's thread is told.
enum Message {
    Asked(Asked),
    Answered { node: usize, answer: Result<Vec<u8>, CallFailed> },
    Status(mpsc::SyncSender<SpaceStatus>),
    Close,
}

/// An address space over memory nodes. Dropping it gives everything back.
///
/// ```
/// use std::sync::Arc;
/// use farcall_memory::{ClientConfig, MemoryServer, NodeConfig, RemoteMemory};
/// use farcall_softnic::SoftNic;
///
/// // Two nodes; in earnest they are other processes.
/// let donated = NodeConfig { slab_bytes: 1 << 20, slabs: 8, ..NodeConfig::default() };
/// let nodes = [(); 2].map(|()| MemoryServer::start(&SoftNic::new(), "127.0.0.1:0", donated).unwrap());
/// let config = ClientConfig {
///     nodes: nodes.iter().map(|node| node.address().to_string()).collect(),
///     size_bytes: 4 << 20,
///     slab_bytes: 1 << 20,
///     ..ClientConfig::default()
/// };
/// let memory = RemoteMemory::open(Arc::new(SoftNic::new()), config)?;
/// memory.write(10_000, b"kept by two nodes")?;
/// let mut bytes = [0; 17];
/// memory.read(10_000, &mut bytes)?;
/// assert_eq!(&bytes, b"kept by two nodes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RemoteMemory {
    inbox: WakeQueue<Message>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    callers: Vec<JoinHandle<()>>,
    size_bytes: u64,
}

impl RemoteMemory {
    /// Opens an address space, all zeros, over the nodes of the configuration. Slabs are asked for when they are first
    /// written to.
    ///
    /// # Errors
    /// If a number is impossible, no node can be used, or resources cannot be had.
    pub fn open(provider: Arc<dyn Provider>, config: ClientConfig) -> Result<Self, OpenError> {
        let engine = Engine::new(&Nic::open(&*provider)?, config)?;
        let config = engine.config();
        let (inbox, stop, size_bytes) = (WakeQueue::new()?, Stop::new()?, config.size_bytes);
        let (mut calls, mut callers) = (Vec::new(), Vec::new());
        for (node, address) in config.nodes.iter().enumerate() {
            let (sender, receiver) = mpsc::channel();
            let (provider, address, inbox) = (Arc::clone(&provider), address.clone(), inbox.clone());
            let run = move || {
                control::run(&provider, &address, &receiver, |answer| {
                    inbox.push(Message::Answered { node, answer });
                });
            };
            callers.push(std::thread::Builder::new().name(format!("memory-node-{node}")).spawn(run)?);
            calls.push(sender);
        }
        let space = Space {
            engine,
            inbox: inbox.clone(),
            calls,
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_token: 0,
            close_by: None,
            is_closed: false,
        };
        let thread = std::thread::Builder::new().name("memory-client".into()).spawn({
            let stop = stop.clone();
            move || space.run(stop)
        })?;
        let memory = Self { inbox, stop, thread: Some(thread), callers, size_bytes };
        memory.wait_for_node()?;
        Ok(memory)
    }

    /// Waits until every node that answers is there, and at least one is.
    fn wait_for_node(&self) -> Result<(), OpenError> {
        let until = Instant::now() + NODES_MAX_WAIT;
        loop {
            let status = self.status();
            let is_known =
                |link: LinkStatus, problem: &Option<String>| link != LinkStatus::Down || problem.is_some();
            let up = status.nodes.iter().filter(|node| node.link != LinkStatus::Down).count();
            let all_known = status.nodes.iter().all(|node| is_known(node.link, &node.problem));
            if up == status.nodes.len() || (up > 0 && all_known) {
                return Ok(());
            }
            if Instant::now() > until {
                let problems = status
                    .nodes
                    .into_iter()
                    .map(|node| node.problem.unwrap_or_else(|| format!("{}: no answer", node.address)));
                return Err(OpenError::NoNode(problems.collect::<Vec<_>>().join("; ")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Bytes of the address space.
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads. What was never written is zero.
    ///
    /// # Errors
    /// If a page cannot be had. Nothing wrong is ever read.
    ///
    /// # Panics
    /// If it is not inside of the address space.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len());
        for (at, piece) in pieces(offset, bytes.len()) {
            let work = Work::Read { len_bytes: piece.len() };
            bytes[piece].copy_from_slice(&self.ask(at, work)?);
        }
        Ok(())
    }

    /// Writes: done when every replica that is in sync has it. A long write is done in pieces.
    ///
    /// # Errors
    /// If a page cannot be written. It holds what it held, or what was written.
    ///
    /// # Panics
    /// If it is not inside of the address space.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len());
        for (at, piece) in pieces(offset, bytes.len()) {
            self.ask(at, Work::Write(bytes[piece].to_vec()))?;
        }
        Ok(())
    }

    /// Reads every replica of every page that was written, and repairs what is wrong.
    ///
    /// # Errors
    /// If the client was closed.
    pub fn scrub(&self) -> Result<()> {
        self.ask(0, Work::Scrub).map(drop)
    }

    /// How it stands.
    pub fn status(&self) -> SpaceStatus {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.inbox.push(Message::Status(sender));
        receiver.recv().unwrap_or_default()
    }

    fn check(&self, offset: u64, len_bytes: usize) {
        let is_inside = offset.checked_add(len_bytes as u64).is_some_and(|end| end <= self.size_bytes);
        assert!(is_inside, "{len_bytes} bytes at {offset} are outside of {} bytes", self.size_bytes);
    }

    fn ask(&self, offset: u64, work: Work) -> Result<Vec<u8>> {
        let (ended, receiver) = mpsc::sync_channel(1);
        self.inbox.push(Message::Asked(Asked { offset, work, ended }));
        receiver.recv().unwrap_or(Err(IoError::Closed))
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        self.inbox.push(Message::Close);
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
        self.stop.request();
        // Their senders went with the engine.
        self.callers.drain(..).for_each(|caller| drop(caller.join()));
    }
}

/// Cuts a request into pieces that end where pages do.
fn pieces(offset: u64, len_bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = offset + from as u64;
        let longest = PIECE_PAGES * PAGE_BYTES - (at % PAGE_BYTES as u64) as usize;
        let to = len_bytes.min(from + longest);
        let piece = (at, from..to);
        from = to;
        (!piece.1.is_empty()).then_some(piece)
    })
}

/// What the engine's thread runs.
struct Space {
    engine: Engine,
    inbox: WakeQueue<Message>,
    calls: Vec<mpsc::Sender<Vec<u8>>>,
    asked: BTreeMap<u64, mpsc::SyncSender<Result<Vec<u8>>>>,
    /// One for each thread that asks, at most.
    waiting: VecDeque<Asked>,
    last_token: u64,
    /// It is being closed: until then nodes may answer.
    close_by: Option<Nanos>,
    is_closed: bool,
}

impl Space {
    fn run(mut self, stop: Stop) {
        let clock = MonotonicClock::new();
        let mut driver = Driver::new(clock, Waiting::Adaptive { max_retry: POLLS }, stop);
        let ran = driver.run_until(&mut self, |space| space.is_closed);
        // The system cannot sleep on a descriptor: nothing can go on.
        if let Err(error) = ran {
            tracing::error!("memory client: its thread ended: {error}");
        }
    }

    fn take(&mut self, message: Message, now: Nanos) {
        match message {
            Message::Asked(_) if self.close_by.is_some() => {}
            Message::Asked(asked) => self.waiting.push_back(asked),
            Message::Answered { node, answer } => self.engine.answered(node, answer, now),
            // Nobody waits for it any more if this fails; so below.
            Message::Status(to) => drop(to.send(self.engine.status())),
            Message::Close => {
                self.close_by = Some(now + NODES_MAX_WAIT);
                self.asked.clear();
                self.waiting.clear();
                self.engine.close();
            }
        }
    }
}

impl Space {
    /// Hands over what there is room for, in order.
    fn submit(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.engine.has_room(PIECE_PAGES + 1)
            && let Some(Asked { offset, work, ended }) = self.waiting.pop_front()
        {
            any = true;
            self.last_token += 1;
            let token = self.last_token;
            // The range was checked, and there is room: it is taken.
            if self.engine.submit(Request { token, offset, work }, now).is_ok() {
                self.asked.insert(token, ended);
            }
        }
        any
    }
}

impl Endpoint for Space {
    fn progress(&mut self, now: Nanos) -> Next {
        let mut any = false;
        while let Some(message) = self.inbox.pop() {
            any = true;
            self.take(message, now);
        }
        any |= self.submit(now);
        let next = self.engine.progress(now);
        while let Some(ended) = self.engine.next_ended() {
            if let Some(to) = self.asked.remove(&ended.token) {
                let _ = to.send(ended.result);
            }
        }
        while let Some((node, bytes)) = self.engine.next_call(now) {
            any = true;
            // Its thread lives as long as we do.
            let _ = self.calls[node].send(bytes);
        }
        self.is_closed = self.close_by.is_some_and(|by| now >= by || self.engine.is_closed());
        if any { Next::Again } else { next.merge(Next::Idle { until: self.close_by }) }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.inbox.clear_wake();
        self.engine.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.inbox.fd());
        self.engine.wait_set(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_pages_do_and_cover_all() {
        let longest = PIECE_PAGES * PAGE_BYTES;
        for (offset, len_bytes) in [(0, 1), (4_095, 2), (10, 3 * longest), (7, longest - 7), (0, 0)] {
            let mut next = 0;
            for (at, piece) in pieces(offset, len_bytes) {
                assert_eq!((at, piece.start), (offset + next as u64, next));
                assert!(piece.len() <= longest);
                next = piece.end;
                assert!(next == len_bytes || (offset + next as u64).is_multiple_of(PAGE_BYTES as u64));
            }
            assert_eq!(next, len_bytes);
        }
    }
}
