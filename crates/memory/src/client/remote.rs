//! The address space as programs use it: reads and writes that wait, from any thread. One thread of its own runs the
//! engine, renews leases and makes up for nodes that are lost.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::Waiting;
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Next, Provider, WaitSet};

use super::buffers::Buffers;
use super::config::{ClientConfig, IoError, OpenError, Request, SpaceStatus, Takeover, VolumeConfig, Work};
use super::{MemoryEndpoint, PAGE_BYTES};

/// Pages of one piece of a long request: as many as one of 1 MiB has.
const PIECE_PAGES: usize = 256;
/// Empty looks before the thread sleeps.
const POLLS: u32 = 2_000;

/// Bytes of one piece of long notes.
const NOTE_BYTES: usize = 1 << 20;

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
    thread: Option<JoinHandle<()>>,
    size_bytes: u64,
    clock: MonotonicClock,
    buffers: Buffers,
    /// Until when nobody else can have the volume, as far as its thread knows.
    held_until: Arc<AtomicU64>,
}

impl RemoteMemory {
    /// Opens an address space, all zeros, over the nodes of the configuration. Slabs are asked for when they are first
    /// written to.
    ///
    /// # Errors
    /// If a number is impossible, no node can be used, or resources cannot be had.
    pub fn open(provider: Arc<dyn Provider>, config: ClientConfig) -> Result<Self, OpenError> {
        let clock = MonotonicClock::new();
        Self::run(MemoryEndpoint::open(&provider, config, clock)?, clock)
    }

    /// Opens the address space that the last process had which was given this file, and which has ended; a new one if
    /// the file is empty. Writes that it was told are done are done, and those that it had begun are done again.
    ///
    /// # Errors
    /// As [`RemoteMemory::open`], or if the file is of another address space.
    pub fn resume(provider: Arc<dyn Provider>, config: ClientConfig, kept: File) -> Result<Self, OpenError> {
        let clock = MonotonicClock::new();
        Self::run(MemoryEndpoint::resume(&provider, config, kept, clock)?, clock)
    }

    /// Opens a volume that an earlier client left at the nodes, or a new one. What that one was told is written or
    /// noted is there.
    ///
    /// # Errors
    /// As [`RemoteMemory::open`]; if another client has the volume, too few nodes answer, or it has another key or
    /// shape.
    pub fn claim(
        provider: Arc<dyn Provider>,
        config: ClientConfig,
        volume: &VolumeConfig,
    ) -> Result<(Self, Takeover), OpenError> {
        let clock = MonotonicClock::new();
        let (memory, takeover) = MemoryEndpoint::claim(&provider, config, volume, clock)?;
        Ok((Self::run(memory, clock)?, takeover))
    }

    fn run(memory: MemoryEndpoint, clock: MonotonicClock) -> Result<Self, OpenError> {
        let (inbox, size_bytes) = (WakeQueue::new()?, memory.size_bytes());
        let buffers = memory.buffers().clone();
        let space = Space {
            memory,
            inbox: inbox.clone(),
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_token: 0,
            is_closing: false,
            held_until: Arc::default(),
        };
        space.tell_until();
        let held_until = Arc::clone(&space.held_until);
        let stop = Stop::new()?;
        let run = move || space.run(clock, stop);
        let thread = std::thread::Builder::new().name("memory-client".into()).spawn(run)?;
        Ok(Self { inbox, thread: Some(thread), size_bytes, clock, buffers, held_until })
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
            let found = self.ask(at, work)?;
            bytes[piece].copy_from_slice(&found);
            self.buffers.keep(found);
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
            self.ask(at, Work::Write(self.buffers.copy(&bytes[piece])))?;
        }
        Ok(())
    }

    /// Writes to the notes of a volume: done when all its members have it.
    ///
    /// # Errors
    /// If it is not inside of the notes, or the volume is lost to this client.
    pub fn note(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        for (piece, number) in bytes.chunks(NOTE_BYTES).zip(0..) {
            self.ask(offset + number * NOTE_BYTES as u64, Work::Note(piece.to_vec()))?;
        }
        Ok(())
    }

    /// For how long nobody else can have the volume, if nobody has it now: however long this process was stopped.
    pub fn held_for(&self) -> Option<Duration> {
        let left = self.held_until.load(Ordering::Acquire).saturating_sub(self.clock.now().0);
        (left > 0).then_some(Duration::from_nanos(left))
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
        let result = receiver.recv().unwrap_or(Err(IoError::Closed))?;
        // What was read after that may be another client's, or older than that.
        self.held_for().map(|_| result).ok_or(IoError::Fenced)
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        self.inbox.push(Message::Close);
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
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
    memory: MemoryEndpoint,
    inbox: WakeQueue<Message>,
    asked: BTreeMap<u64, mpsc::SyncSender<Result<Vec<u8>>>>,
    /// One for each thread that asks, at most.
    waiting: VecDeque<Asked>,
    last_token: u64,
    is_closing: bool,
    held_until: Arc<AtomicU64>,
}

impl Space {
    fn run(mut self, clock: MonotonicClock, stop: Stop) {
        let mut driver = Driver::new(clock, Waiting::Adaptive { max_retry: POLLS }, stop);
        let ran = driver.run_until(&mut self, |space| space.memory.is_closed());
        // The system cannot sleep on a descriptor: nothing can go on.
        if let Err(error) = ran {
            tracing::error!("memory client: its thread ended: {error}");
        }
    }

    fn tell_until(&self) {
        self.held_until.store(self.memory.held_until().0, Ordering::Release);
    }

    fn take(&mut self, message: Message, now: Nanos) {
        match message {
            Message::Asked(_) if self.is_closing => {}
            Message::Asked(asked) => self.waiting.push_back(asked),
            // Nobody waits for it any more if this fails; so below.
            Message::Status(to) => drop(to.send(self.memory.status())),
            Message::Close => {
                self.is_closing = true;
                self.asked.clear();
                self.waiting.clear();
                self.memory.close(now);
            }
        }
    }

    /// Hands over what there is room for, in order.
    fn submit(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while self.memory.has_room(PIECE_PAGES)
            && let Some(Asked { offset, work, ended }) = self.waiting.pop_front()
        {
            any = true;
            self.last_token += 1;
            let token = self.last_token;
            // The range was checked, and there is room: it is taken, but for notes. Who asked hears of that.
            if self.memory.submit(Request { token, offset, work }, now).is_ok() {
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
        let next = self.memory.progress(now);
        self.tell_until();
        while let Some(ended) = self.memory.next_ended() {
            if let Some(to) = self.asked.remove(&ended.token) {
                let _ = to.send(ended.result);
            }
        }
        if any { Next::Again } else { next }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.inbox.clear_wake();
        self.memory.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.inbox.fd());
        self.memory.wait_set(set);
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
