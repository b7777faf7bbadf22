//! The address space as programs use it: reads and writes that wait, from any thread. Who waits drives the engine
//! meanwhile, for a while; one thread of its own does so otherwise, renews leases and makes up for nodes that are lost.

use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_verbs::{Clock, MonotonicClock, Provider};

use super::buffers::Buffers;
use super::config::{ClientConfig, IoError, OpenError, SpaceStatus, Takeover, VolumeConfig, Work};
use super::space::Space;
use super::{MemoryEndpoint, PAGE_BYTES, PIECE_PAGES};

/// Bytes of one piece of long notes.
const NOTE_BYTES: usize = 1 << 20;

/// Interval between two checks whether the volume is held again.
const HELD_CHECK_INTERVAL: Duration = Duration::from_millis(1);

pub(super) type Result<T, E = IoError> = std::result::Result<T, E>;

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
    space: Arc<Space>,
    thread: Option<JoinHandle<()>>,
    size_bytes: u64,
    clock: MonotonicClock,
    buffers: Buffers,
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
        let (size_bytes, buffers) = (memory.size_bytes(), memory.buffers().clone());
        let space = Arc::new(Space::new(memory, clock)?);
        let thread = Space::start(&space)?;
        Ok(Self { space, thread: Some(thread), size_bytes, clock, buffers })
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

    /// Reads so many bytes and appends them. Into an empty vector a piece is not copied.
    ///
    /// # Errors
    /// If a page cannot be had; what was read before it is appended. Nothing wrong is ever read.
    ///
    /// # Panics
    /// If it is not inside of the address space.
    pub fn append(&self, offset: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.check(offset, len_bytes);
        for (at, piece) in pieces(offset, len_bytes) {
            let mut found = self.ask(at, Work::Read { len_bytes: piece.len() })?;
            if bytes.is_empty() {
                std::mem::swap(bytes, &mut found);
            } else {
                bytes.extend_from_slice(&found);
            }
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
        let left = self.space.held_until().0.saturating_sub(self.clock.now().0);
        (left > 0).then_some(Duration::from_nanos(left))
    }

    /// Whether the volume is lost to this client for ever: another one may have it.
    pub fn is_lost(&self) -> bool {
        self.space.is_lost()
    }

    /// Reads every replica of every page that was written, and repairs what is wrong.
    ///
    /// # Errors
    /// If the client was closed.
    pub fn scrub(&self) -> Result<()> {
        self.ask(0, Work::Scrub).map(drop)
    }

    /// From now on there is another node, if it is not known: slabs are asked of it as of the others, and replicas that
    /// are missing are made there; in a volume when it has the notes. Returns whether it is new.
    /// [`ClientConfig::nodes_max`] says how many there may be.
    ///
    /// # Errors
    /// If there is no room for another one, or the system gives no thread.
    pub fn join(&self, address: &str) -> Result<bool, OpenError> {
        self.space.join(address)
    }

    /// How it stands.
    pub fn status(&self) -> SpaceStatus {
        self.space.status()
    }

    fn check(&self, offset: u64, len_bytes: usize) {
        let is_inside = offset.checked_add(len_bytes as u64).is_some_and(|end| end <= self.size_bytes);
        assert!(is_inside, "{len_bytes} bytes at {offset} are outside of {} bytes", self.size_bytes);
    }

    fn ask(&self, offset: u64, work: Work) -> Result<Vec<u8>> {
        let result = self.space.ask(offset, work)?;
        self.wait_until_held()?;
        Ok(result)
    }

    /// Waits until no other mount can have the volume, for certain. What was read before is right then: the nodes
    /// that count have heard of no other client. If it is never known again, what was read may be another client's, or older
    /// than that.
    fn wait_until_held(&self) -> Result<()> {
        while self.held_for().is_none() {
            if self.is_lost() {
                return Err(IoError::Fenced);
            }
            std::thread::sleep(HELD_CHECK_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        self.space.close();
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
