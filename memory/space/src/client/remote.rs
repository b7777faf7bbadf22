//! Blocking reads and writes of an address space, from any thread. A thread that waits drives the engine for a short
//! time. Otherwise a background thread drives it, renews leases and replaces lost replicas.

use farcall_link::Nic;
use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_verbs::{Clock, MonotonicClock};

use super::buffers::Buffers;
use super::config::{ClientConfig, IoError, OpenError, Result, SpaceStatus, Takeover, VolumeConfig, Work};
use super::space::Space;
use super::{MemoryEndpoint, PAGE_BYTES, PART_PAGES};

/// Length in bytes of one part of a long metadata write.
const METADATA_PART_BYTES: usize = 1 << 20;

/// Interval between checks whether the volume is certainly held again.
const EXCLUSIVE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// An address space over memory nodes. Dropping it returns all slabs and leases.
///
/// ```
/// use farcall_link::Nic;
/// use farcall_memory::{ClientConfig, MemoryServer, NodeConfig, RemoteMemory};
/// use farcall_softnic::SoftNic;
///
/// // Two nodes; in earnest they are other processes.
/// let donated = NodeConfig { slab_bytes: 1 << 20, slabs: 8, ..NodeConfig::default() };
/// let nic = Nic::open(&SoftNic::new())?;
/// let nodes = [(); 2].map(|()| MemoryServer::start(&nic, "127.0.0.1:0", donated).unwrap());
/// let config = ClientConfig {
///     nodes: nodes.iter().map(|node| node.address().to_string()).collect(),
///     size_bytes: 4 << 20,
///     slab_bytes: 1 << 20,
///     ..ClientConfig::default()
/// };
/// let memory = RemoteMemory::open(&nic, config)?;
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

farcall_verbs::opaque_debug!(RemoteMemory { size_bytes });

impl RemoteMemory {
    /// Opens an address space of zeros over the nodes of the configuration. Slabs are requested when they are first
    /// written to.
    ///
    /// # Errors
    /// Returns an error if a number is out of range, no node can be used, or a resource is not available.
    pub fn open(nic: &Nic, config: ClientConfig) -> Result<Self, OpenError> {
        let clock = MonotonicClock::new();
        Self::run(MemoryEndpoint::open(nic, config, clock)?, clock)
    }

    /// Opens the address space of the last process that used this recovery file, which must have exited; a new one if
    /// the file is empty. Writes acknowledged to that process are complete. Those in progress are repeated.
    ///
    /// # Errors
    /// Returns the errors of [`RemoteMemory::open`]. Also fails if the file belongs to another address space.
    pub fn resume(nic: &Nic, config: ClientConfig, recovery_file: File) -> Result<Self, OpenError> {
        let clock = MonotonicClock::new();
        Self::run(MemoryEndpoint::resume(nic, config, recovery_file, clock)?, clock)
    }

    /// Opens a volume that an earlier client left at the nodes, or a new one. All writes of data and metadata
    /// acknowledged to the earlier client are there.
    ///
    /// # Errors
    /// Returns the errors of [`RemoteMemory::open`]. Also fails if another client holds the volume, if too few nodes
    /// reply, or if the key or geometry of the volume differs.
    pub fn claim(
        nic: &Nic,
        config: ClientConfig,
        volume: &VolumeConfig,
    ) -> Result<(Self, Takeover), OpenError> {
        let clock = MonotonicClock::new();
        let (memory, takeover) = MemoryEndpoint::claim(nic, config, volume, clock)?;
        Ok((Self::run(memory, clock)?, takeover))
    }

    fn run(memory: MemoryEndpoint, clock: MonotonicClock) -> Result<Self, OpenError> {
        let (size_bytes, buffers) = (memory.size_bytes(), memory.buffers().clone());
        let space = Arc::new(Space::new(memory, clock)?);
        let thread = Space::start(&space)?;
        Ok(Self { space, thread: Some(thread), size_bytes, clock, buffers })
    }

    /// Returns the length of the address space in bytes.
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads bytes. Bytes that were never written are zero.
    ///
    /// # Errors
    /// Returns an error if a page cannot be read. Wrong bytes are never returned.
    ///
    /// # Panics
    /// Panics if the range is not within the address space.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len());
        for (at, part) in parts(offset, bytes.len()) {
            let work = Work::Read { len_bytes: part.len() };
            let read = self.execute(at, work)?;
            bytes[part].copy_from_slice(&read);
            self.buffers.recycle(read);
        }
        Ok(())
    }

    /// Reads `len_bytes` bytes and appends them. If the vector is empty, the first part of the read is moved into it
    /// without a copy.
    ///
    /// # Errors
    /// Returns an error if a page cannot be read; the parts read before it are appended. Wrong bytes are never
    /// returned.
    ///
    /// # Panics
    /// Panics if the range is not within the address space.
    pub fn append(&self, offset: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.check(offset, len_bytes);
        for (at, part) in parts(offset, len_bytes) {
            let mut read = self.execute(at, Work::Read { len_bytes: part.len() })?;
            if bytes.is_empty() {
                std::mem::swap(bytes, &mut read);
            } else {
                bytes.extend_from_slice(&read);
            }
            self.buffers.recycle(read);
        }
        Ok(())
    }

    /// Writes bytes. Returns when every in-sync replica has them. A long write is split into parts.
    ///
    /// # Errors
    /// Returns an error if a page cannot be written. Such a page holds its earlier content or the bytes written.
    ///
    /// # Panics
    /// Panics if the range is not within the address space.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len());
        for (at, part) in parts(offset, bytes.len()) {
            self.execute(at, Work::Write(self.buffers.copy(&bytes[part])))?;
        }
        Ok(())
    }

    /// Writes user metadata of a volume. Returns when all members have it.
    ///
    /// # Errors
    /// Returns an error if the range is not within the user metadata, or if this client has lost the volume.
    pub fn write_metadata(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        for (part, number) in bytes.chunks(METADATA_PART_BYTES).zip(0..) {
            self.execute(offset + number * METADATA_PART_BYTES as u64, Work::WriteMetadata(part.to_vec()))?;
        }
        Ok(())
    }

    /// Returns the time for which no other client can hold the volume, also if this process is stopped in between;
    /// `None` if another client may hold it now.
    pub fn exclusive_for(&self) -> Option<Duration> {
        let left = self.space.exclusive_until().0.saturating_sub(self.clock.now().0);
        (left > 0).then_some(Duration::from_nanos(left))
    }

    /// Returns whether this client has permanently lost the volume: another one may hold it.
    pub fn is_lost(&self) -> bool {
        self.space.is_lost()
    }

    /// Reads every replica of every page that was written and repairs wrong ones.
    ///
    /// # Errors
    /// Returns an error if the client was closed.
    pub fn scrub(&self) -> Result<()> {
        self.execute(0, Work::Scrub).map(drop)
    }

    /// Adds a node if it is not known yet. From now on slabs are requested from it, and missing replicas are created
    /// there; in a volume, as soon as it has the metadata. Returns whether it is new. [`ClientConfig::nodes_max`]
    /// limits the number of nodes.
    ///
    /// # Errors
    /// Returns an error if the maximum number of nodes is reached, or if the operating system cannot start a thread.
    pub fn join(&self, address: &str) -> Result<bool, OpenError> {
        self.space.join(address)
    }

    /// Returns the status of the address space.
    pub fn status(&self) -> SpaceStatus {
        self.space.status()
    }

    fn check(&self, offset: u64, len_bytes: usize) {
        let is_inside = offset.checked_add(len_bytes as u64).is_some_and(|end| end <= self.size_bytes);
        assert!(is_inside, "{len_bytes} bytes at {offset} are outside of {} bytes", self.size_bytes);
    }

    fn execute(&self, offset: u64, work: Work) -> Result<Vec<u8>> {
        let result = self.space.execute(offset, work)?;
        self.wait_until_exclusive()?;
        Ok(result)
    }

    /// Waits until no other mount can hold the volume. What was read before is then current, because the members have
    /// granted no other client a lease. Fails if the volume is lost: what was read may be outdated or another
    /// client's.
    fn wait_until_exclusive(&self) -> Result<()> {
        while self.exclusive_for().is_none() {
            if self.is_lost() {
                return Err(IoError::Fenced);
            }
            std::thread::sleep(EXCLUSIVE_CHECK_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        self.space.close();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}

/// Splits a request into parts that end at page boundaries.
fn parts(offset: u64, len_bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = offset + from as u64;
        let longest = PART_PAGES * PAGE_BYTES - (at % PAGE_BYTES as u64) as usize;
        let to = len_bytes.min(from + longest);
        let part = (at, from..to);
        from = to;
        (!part.1.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_requests_at_page_boundaries() {
        let longest = PART_PAGES * PAGE_BYTES;
        for (offset, len_bytes) in [(0, 1), (4_095, 2), (10, 3 * longest), (7, longest - 7), (0, 0)] {
            let mut next = 0;
            for (at, part) in parts(offset, len_bytes) {
                assert_eq!((at, part.start), (offset + next as u64, next));
                assert!(part.len() <= longest);
                next = part.end;
                assert!(next == len_bytes || (offset + next as u64).is_multiple_of(PAGE_BYTES as u64));
            }
            assert_eq!(next, len_bytes);
        }
    }
}
