//! The public interface of a region.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::{Nic, WaitStrategy};
use farcall_memory::{ClientConfig, MemoryEndpoint, OpenError, PAGE_BYTES};
use farcall_shm::fork::Generation;
use farcall_verbs::{MonotonicClock, with_sources};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::paged_memory::{Mapping, PagedMemory};
use crate::pager::{Limits, Message, Pager, QUEUED_MAX, Saved, SavedQueue, Snapshot};
use crate::snapshot::{self, SnapshotError, Writer};
use crate::status::RegionStatus;
use crate::uffd::FaultMode;

/// Number of empty polls before the pager sleeps.
pub(crate) const POLLS: u32 = 2_000;
/// Interval at which a thread that waits for the pager checks that the pager is alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Sizes and limits of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Configuration of the address space in which its pages are stored; `size_bytes` there is the size of the region.
    pub memory: ClientConfig,
    /// Maximum amount of local memory that its pages take, in bytes, rounded down to pages; at least 64 pages. An
    /// eighth of it is for evicted pages.
    pub resident_limit_bytes: u64,
    /// Maximum number of pages that are read ahead of a sequence of faults; 0 disables read-ahead.
    pub read_ahead_pages: u32,
}

impl Default for RegionConfig {
    fn default() -> Self {
        Self { memory: ClientConfig::default(), resident_limit_bytes: 256 << 20, read_ahead_pages: 32 }
    }
}

/// Error of opening a region.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A configuration value is out of range.
    #[error("{name} is {value}: from {min} to {max}")]
    Range {
        /// Name of the value.
        name: &'static str,
        /// The value.
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// The kernel does not provide the required features to this process.
    #[error("no region of remote memory (see: farcall doctor)")]
    System(#[from] std::io::Error),
    /// The memory nodes cannot be used.
    #[error(transparent)]
    Memory(#[from] OpenError),
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// Memory of this process whose bytes are stored on memory nodes; a part of it is resident.
///
/// It is used like any memory, through slices. The first access to a page that is not resident fetches it, and the
/// thread waits for that. Bytes that were never written are zero.
///
/// * *A page that cannot be read* (all its replicas are lost, or its nodes do not respond for
///   [`ClientConfig::patience`]) is poisoned: an access to it raises SIGBUS. Wrong bytes are never read. It stays
///   poisoned until [`Handle::dont_need`]; the next access then reads it again.
/// * *System calls* that access it (read(2) into it) work if [`RemoteRegion::supports_system_calls`]; otherwise they
///   fail with EFAULT where a page is not resident.
/// * *A forked child* does not inherit it: an access there raises SIGSEGV, and methods return errors or panic.
/// * *A program that removes its pages* (madvise with MADV_DONTNEED, mremap) loses them: they are poisoned.
///
/// ```
/// use farcall_link::Nic;
/// use farcall_memory::{ClientConfig, MemoryServer, NodeConfig};
/// use farcall_region::{Preflight, RegionConfig, RemoteRegion};
/// use farcall_softnic::SoftNic;
///
/// if let Preflight::Nothing(_) = Preflight::run() {
///     return Ok(());
/// }
/// // A node; in earnest it is another process.
/// let donated = NodeConfig { slab_bytes: 1 << 20, slabs: 8, ..NodeConfig::default() };
/// let nic = Nic::open(&SoftNic::new())?;
/// let node = MemoryServer::start(&nic, "127.0.0.1:0", donated)?;
/// let memory = ClientConfig {
///     nodes: vec![node.address().to_string()],
///     size_bytes: 8 << 20,
///     slab_bytes: 1 << 20,
///     replicas: 1,
///     ..ClientConfig::default()
/// };
/// let config = RegionConfig { memory, resident_limit_bytes: 1 << 20, ..RegionConfig::default() };
/// let mut region = RemoteRegion::open(&nic, config)?;
/// let numbers = region.view_mut::<u64>(0..1_000_000);
/// for (n, number) in numbers.iter_mut().enumerate() {
///     *number = n as u64;
/// }
/// assert_eq!(numbers.iter().sum::<u64>(), 499_999_500_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RemoteRegion {
    inbox: WakeQueue<Message>,
    pager: Option<JoinHandle<()>>,
    // Drop order: after the pager's thread, which makes the mapping inaccessible.
    mapping: Arc<Mapping>,
    fault_mode: FaultMode,
    generation: Generation,
}

farcall_verbs::opaque_debug!(RemoteRegion { len_bytes });

impl RemoteRegion {
    /// Opens a region of zeros.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks a required feature ([`crate::Preflight`]), a configuration value is out of
    /// range, or no memory node can be used.
    pub fn open(nic: &Nic, config: RegionConfig) -> Result<Self, RegionError> {
        let RegionConfig { memory, resident_limit_bytes, read_ahead_pages } = config;
        let page = PAGE_BYTES as u64;
        let ranges = [
            ("size_bytes", memory.size_bytes, page, 1 << 43),
            ("resident_limit_bytes", resident_limit_bytes, 64 * page, 1 << 43),
            ("read_ahead_pages", read_ahead_pages.into(), 0, 255),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(RegionError::Range { name, value, min, max });
            }
        }
        let patience = memory.patience;
        let resident = (resident_limit_bytes / page) as usize;
        let limits = Limits { resident, ahead: read_ahead_pages, patience };
        let clock = MonotonicClock::new();
        let memory = MemoryEndpoint::open(nic, memory, clock)?;
        let slots = 1 + limits.staging() as usize;
        let (paged, fault_mode) = PagedMemory::new(memory.size_bytes() as usize, slots)?;
        let (inbox, stop) = (WakeQueue::new()?, Stop::new()?);
        let mapping = Arc::clone(paged.region());
        let mut pager = Pager::new(paged, memory, inbox.clone(), clock, limits);
        let run = move || {
            let mut driver = Driver::new(clock, WaitStrategy::Adaptive { max_retry: POLLS }, stop);
            // However the thread ends, dropping the pager makes the region inaccessible.
            if let Err(error) = driver.run_until(&mut pager, |pager| pager.has_ended()) {
                eprintln!("farcall region: {}", with_sources(&error));
            }
        };
        let pager = Some(std::thread::Builder::new().name("region-pager".into()).spawn(run)?);
        Ok(Self { inbox, pager, mapping, fault_mode, generation: Generation::current() })
    }

    /// Opens a region with the contents of a snapshot, followed by zeros.
    ///
    /// # Errors
    /// Returns the errors of [`RemoteRegion::open`], and an error if the snapshot is damaged or of a larger region.
    pub fn open_snapshot(
        nic: &Nic,
        config: RegionConfig,
        path: impl AsRef<Path>,
    ) -> Result<Self, RegionError> {
        let mut region = Self::open(nic, config)?;
        let room_bytes = region.len_bytes() as u64;
        let bytes = region.bytes_mut();
        snapshot::read_file(path.as_ref(), room_bytes, |page, of_page| {
            let first = page as usize * PAGE_BYTES;
            bytes[first..first + PAGE_BYTES].copy_from_slice(of_page);
        })?;
        Ok(region)
    }

    /// Returns the size of the region in bytes.
    pub fn len_bytes(&self) -> usize {
        self.mapping.len_bytes()
    }

    /// Returns whether system calls wait for pages that are not resident, as threads do; otherwise they fail with
    /// EFAULT.
    pub fn supports_system_calls(&self) -> bool {
        self.fault_mode == FaultMode::All
    }

    /// Returns all bytes.
    ///
    /// # Panics
    /// In a forked child.
    pub fn bytes(&self) -> &[u8] {
        self.require_own();
        // SAFETY: `self.mapping` keeps the range mapped, and the borrow of `self` keeps `self` alive. All bytes are
        // initialized: zeros, or bytes written through `&mut self`. The pager changes no byte: it restores each page
        // with the bytes that it evicted (verified by checksum), or poisons it, and then the access raises SIGBUS.
        unsafe { std::slice::from_raw_parts(self.mapping.address().as_ptr(), self.mapping.len_bytes()) }
    }

    /// Returns all bytes, for writing.
    ///
    /// # Panics
    /// In a forked child.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.require_own();
        // SAFETY: `self.mapping` keeps the range mapped and all bytes are initialized, for the reasons given in
        // `bytes`. The slice borrows `self` mutably, so no other reference to the bytes exists.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.address().as_ptr(), self.mapping.len_bytes()) }
    }

    /// Returns the values with the indices `range` of a slice of `T` over the whole region.
    ///
    /// # Panics
    /// If the range is not inside the region; in a forked child.
    pub fn view<T: FromBytes + Immutable + KnownLayout>(&self, range: std::ops::Range<usize>) -> &[T] {
        let bytes = of_range::<T>(&range, self.len_bytes());
        // Pages are aligned, and the range consists of complete values.
        <[T]>::ref_from_bytes(&self.bytes()[bytes]).unwrap_or_else(|_| unaligned::<T>())
    }

    /// Like [`RemoteRegion::view`], for writing.
    ///
    /// # Panics
    /// Panics like [`RemoteRegion::view`].
    pub fn view_mut<T: FromBytes + IntoBytes + KnownLayout>(
        &mut self,
        range: std::ops::Range<usize>,
    ) -> &mut [T] {
        let bytes = of_range::<T>(&range, self.len_bytes());
        <[T]>::mut_from_bytes(&mut self.bytes_mut()[bytes]).unwrap_or_else(|_| unaligned::<T>())
    }

    /// Returns a handle for hints, snapshots and counters.
    pub const fn handle(&self) -> Handle<'_> {
        Handle { region: self }
    }

    /// Returns all values of the region, and a handle for other threads to use at the same time: a snapshot can be
    /// made while these values change.
    ///
    /// # Panics
    /// In a forked child.
    pub fn split_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self) -> (&mut [T], Handle<'_>) {
        let range = 0..self.len_bytes() / size_of::<T>().max(1);
        let values: *mut [T] = self.view_mut::<T>(range);
        // SAFETY: `values` comes from `view_mut` and both results carry the lifetime of the mutable borrow of `self`,
        // so no other slice can be created. `Handle` accesses no byte of the region: its methods only send messages to
        // the pager, which preserves the bytes of every page.
        (unsafe { &mut *values }, Handle { region: self })
    }

    fn require_own(&self) {
        assert!(
            !self.generation.is_inherited(),
            "a region belongs to the process that opened it: a forked child opens its own"
        );
    }
}

fn of_range<T>(range: &std::ops::Range<usize>, len_bytes: usize) -> std::ops::Range<usize> {
    let ends = [range.start, range.end].map(|at| at.checked_mul(size_of::<T>()));
    match ends {
        [Some(start), Some(end)] if start <= end && end <= len_bytes => start..end,
        _ => panic!("values {range:?} are outside of a region of {len_bytes} bytes"),
    }
}

fn unaligned<T>() -> ! {
    panic!("values of {} need pages of their own alignment", std::any::type_name::<T>())
}

impl Drop for RemoteRegion {
    fn drop(&mut self) {
        // A forked child has neither the thread nor the mapping: joining or unmapping would affect unrelated objects.
        if self.generation.is_inherited() {
            std::mem::forget(self.pager.take());
            std::mem::forget(Arc::clone(&self.mapping));
            return;
        }
        self.inbox.push(Message::Close);
        if let Some(pager) = self.pager.take() {
            // A panic of the thread was printed by the panic hook.
            let _ = pager.join();
        }
    }
}

/// Operations on a region that any thread may use while other threads access its memory.
#[derive(Clone, Copy, Debug)]
pub struct Handle<'a> {
    region: &'a RemoteRegion,
}

impl Handle<'_> {
    /// Hints that these bytes will be used soon: pages that are not resident are fetched, as far as there is space.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn will_need(&self, bytes: std::ops::Range<usize>) {
        self.hint(&bytes, Message::WillNeed);
    }

    /// Hints that these bytes will not be used for some time: their pages are removed from local memory as soon as
    /// they are stored. They keep their contents. The next access to a poisoned page reads it again.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn dont_need(&self, bytes: std::ops::Range<usize>) {
        self.hint(&bytes, Message::DontNeed);
    }

    fn hint(&self, bytes: &std::ops::Range<usize>, message: impl FnOnce(std::ops::Range<u32>) -> Message) {
        let range = of_range::<u8>(bytes, self.region.len_bytes());
        if range.is_empty() || self.region.generation.is_inherited() {
            return;
        }
        let pages = (range.start / PAGE_BYTES) as u32..range.end.div_ceil(PAGE_BYTES) as u32;
        self.region.inbox.push(message(pages));
    }

    /// Returns the status; all zeros in a forked child, or if the region has failed.
    pub fn status(&self) -> RegionStatus {
        if self.region.generation.is_inherited() {
            return RegionStatus::default();
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        self.region.inbox.push(Message::Status(sender));
        self.receive(&receiver).unwrap_or_default()
    }

    /// Writes the state of the region at one moment to a file, while other threads continue. The moment is between the
    /// call and the return of this function: the file contains all writes before the call, and none after the return.
    /// An existing file of that name is replaced when the new one is complete.
    ///
    /// # Errors
    /// Returns an error if a page cannot be read, the file cannot be written, or another snapshot is in progress.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<(), SnapshotError> {
        if self.region.generation.is_inherited() {
            return Err(SnapshotError::Forked);
        }
        let mut writer = Writer::create(path.as_ref(), self.region.len_bytes() as u64)?;
        let (queue, (sender, receiver)) = (Arc::new(SavedQueue::default()), mpsc::channel());
        self.region.inbox.push(Message::Save(Snapshot::new(sender, Arc::clone(&queue))));
        let taker = SnapshotConsumer { inbox: &self.region.inbox, queue };
        loop {
            match self.receive(&receiver).ok_or(SnapshotError::Closed)? {
                Saved::Page { page, bytes } => {
                    taker.consume_one();
                    writer.page(page.into(), &bytes)?;
                }
                Saved::End(result) => {
                    result?;
                    return Ok(writer.finish()?);
                }
            }
        }
    }

    /// Waits for the pager's reply. Returns `None` if the pager has ended.
    fn receive<T>(&self, receiver: &mpsc::Receiver<T>) -> Option<T> {
        loop {
            match receiver.recv_timeout(CHECK_INTERVAL) {
                Ok(answer) => return Some(answer),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let is_there = self.region.pager.as_ref().is_some_and(|pager| !pager.is_finished());
                    if !is_there {
                        return receiver.try_recv().ok();
                    }
                }
            }
        }
    }
}

/// Consumer of the pages that the pager saves. When it is dropped, the pager stops saving.
struct SnapshotConsumer<'a> {
    inbox: &'a WakeQueue<Message>,
    queue: Arc<SavedQueue>,
}

impl SnapshotConsumer<'_> {
    fn consume_one(&self) {
        let left = self.queue.queued.fetch_sub(1, Ordering::Relaxed) - 1;
        // The pager sleeps after it has sent `QUEUED_MAX` pages.
        if left == QUEUED_MAX / 2 {
            self.inbox.push(Message::Consumed);
        }
    }
}

impl Drop for SnapshotConsumer<'_> {
    fn drop(&mut self) {
        self.queue.is_abandoned.store(true, Ordering::Relaxed);
        self.inbox.push(Message::Consumed);
    }
}
