//! A region as programs use it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_drive::{Driver, Stop, WakeQueue};
use farcall_link::Waiting;
use farcall_memory::{ClientConfig, MemoryEndpoint, OpenError, PAGE_BYTES};
use farcall_shm::fork::Generation;
use farcall_verbs::{MonotonicClock, Provider};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::paged_memory::{Mapping, PagedMemory};
use crate::pager::{Limits, Message, Pager, QUEUED_MAX, Saved, SavedQueue, Saving};
use crate::snapshot::{self, SnapshotError, Writer};
use crate::status::RegionStatus;
use crate::uffd::Waits;

/// Empty looks before the pager sleeps.
pub(crate) const POLLS: u32 = 2_000;
/// How often who waits for the pager looks whether it is there.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

/// Sizes and limits of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Where its pages are kept; `size_bytes` there is the size of the region.
    pub memory: ClientConfig,
    /// Local memory that its pages take at most, whole pages: 64 of them or more. A part, an eighth, is for pages that
    /// are on their way out.
    pub resident_limit_bytes: u64,
    /// The most pages that are read ahead of a sequence of faults; 0: none.
    pub read_ahead_pages: u32,
}

impl Default for RegionConfig {
    fn default() -> Self {
        Self { memory: ClientConfig::default(), resident_limit_bytes: 256 << 20, read_ahead_pages: 32 }
    }
}

/// Why there is no region.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A number is impossible.
    #[error("{name} is {value}: from {min} to {max}")]
    Range {
        /// Which.
        name: &'static str,
        /// What it is.
        value: u64,
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// The system lets this process have none.
    #[error("no region of remote memory: {0}; see: farcall doctor")]
    System(#[from] std::io::Error),
    /// The memory nodes cannot be used.
    #[error(transparent)]
    Memory(#[from] OpenError),
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// Memory of this process whose bytes are kept on memory nodes; a part of it is resident.
///
/// It is used as any memory is, through slices; a page that is not resident is fetched when it is touched, and the thread
/// waits for that. What was never written is zero.
///
/// * *A page that cannot be had* (all its replicas are lost, or its nodes do not answer for
///   [`ClientConfig::patience`]) is poisoned: whoever touches it gets SIGBUS. No other bytes are ever read. It stays so
///   until [`Handle::dont_need`]; then it is asked for anew.
/// * *System calls* that touch it (read(2) into it) work if [`RemoteRegion::takes_system_calls`]; otherwise they fail with
///   EFAULT where a page is not resident.
/// * *A forked child* does not have it: whoever touches it there gets SIGSEGV, and methods refuse or panic.
/// * *Whoever takes its pages away* (madvise with MADV_DONTNEED, mremap) loses them: they are poisoned.
///
/// ```
/// use std::sync::Arc;
/// use farcall_memory::{ClientConfig, MemoryServer, NodeConfig};
/// use farcall_region::{Preflight, RegionConfig, RemoteRegion};
/// use farcall_softnic::SoftNic;
///
/// if let Preflight::Nothing(_) = Preflight::run() {
///     return Ok(());
/// }
/// // A node; in earnest it is another process.
/// let donated = NodeConfig { slab_bytes: 1 << 20, slabs: 8, ..NodeConfig::default() };
/// let node = MemoryServer::start(&SoftNic::new(), "127.0.0.1:0", donated)?;
/// let memory = ClientConfig {
///     nodes: vec![node.address().to_string()],
///     size_bytes: 8 << 20,
///     slab_bytes: 1 << 20,
///     replicas: 1,
///     ..ClientConfig::default()
/// };
/// let config = RegionConfig { memory, resident_limit_bytes: 1 << 20, ..RegionConfig::default() };
/// let mut region = RemoteRegion::open(Arc::new(SoftNic::new()), config)?;
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
    // After the pager's thread, which takes it away from everybody else.
    mapping: Arc<Mapping>,
    waits: Waits,
    made_in: Generation,
}

impl RemoteRegion {
    /// Opens a region, all zeros.
    ///
    /// # Errors
    /// If the system does not offer what is needed ([`crate::Preflight`]), a number is impossible, or no memory node can
    /// be used.
    pub fn open(provider: Arc<dyn Provider>, config: RegionConfig) -> Result<Self, RegionError> {
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
        let memory = MemoryEndpoint::open(&provider, memory, clock)?;
        let places = 1 + limits.staging() as usize;
        let (paged, waits) = PagedMemory::new(memory.size_bytes() as usize, places)?;
        let (inbox, stop) = (WakeQueue::new()?, Stop::new()?);
        let mapping = Arc::clone(paged.region());
        let mut pager = Pager::new(paged, memory, inbox.clone(), clock, limits);
        let run = move || {
            let mut driver = Driver::new(clock, Waiting::Adaptive { max_retry: POLLS }, stop);
            // However it ends, the region is out of everybody's reach when the pager is dropped.
            if let Err(error) = driver.run_until(&mut pager, |pager| pager.is_over()) {
                eprintln!("farcall region: {error}");
            }
        };
        let pager = Some(std::thread::Builder::new().name("region-pager".into()).spawn(run)?);
        Ok(Self { inbox, pager, mapping, waits, made_in: Generation::current() })
    }

    /// Opens a region that holds what a snapshot does, and zeros after that.
    ///
    /// # Errors
    /// As [`RemoteRegion::open`]; if the snapshot is damaged, or of a larger region.
    pub fn open_snapshot(
        provider: Arc<dyn Provider>,
        config: RegionConfig,
        path: impl AsRef<Path>,
    ) -> Result<Self, RegionError> {
        let mut region = Self::open(provider, config)?;
        let room_bytes = region.len_bytes() as u64;
        let bytes = region.bytes_mut();
        snapshot::read_file(path.as_ref(), room_bytes, |page, of_page| {
            let first = page as usize * PAGE_BYTES;
            bytes[first..first + PAGE_BYTES].copy_from_slice(of_page);
        })?;
        Ok(region)
    }

    /// Bytes of the region.
    pub fn len_bytes(&self) -> usize {
        self.mapping.len_bytes()
    }

    /// Whether system calls wait for pages that are not resident, as threads do; otherwise they fail with EFAULT.
    pub fn takes_system_calls(&self) -> bool {
        self.waits == Waits::Everyone
    }

    /// All bytes.
    ///
    /// # Panics
    /// In a forked child.
    pub fn bytes(&self) -> &[u8] {
        self.require_own();
        // SAFETY: mapped as long as this lives, and initialised: zeros, or what was written through `&mut self`. The pager
        // changes no byte: a page that it puts back is what it took out, or who touches it is killed.
        unsafe { std::slice::from_raw_parts(self.mapping.address().as_ptr(), self.mapping.len_bytes()) }
    }

    /// All bytes.
    ///
    /// # Panics
    /// In a forked child.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.require_own();
        // SAFETY: as above, and this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.address().as_ptr(), self.mapping.len_bytes()) }
    }

    /// Values from the first to the last of a range, as of one slice over the whole region.
    ///
    /// # Panics
    /// If the range is not inside of the region; in a forked child.
    pub fn view<T: FromBytes + Immutable + KnownLayout>(&self, range: std::ops::Range<usize>) -> &[T] {
        let bytes = of_range::<T>(&range, self.len_bytes());
        // Pages are aligned, and the range is of whole values.
        <[T]>::ref_from_bytes(&self.bytes()[bytes]).unwrap_or_else(|_| unaligned::<T>())
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// As [`RemoteRegion::view`].
    pub fn view_mut<T: FromBytes + IntoBytes + KnownLayout>(
        &mut self,
        range: std::ops::Range<usize>,
    ) -> &mut [T] {
        let bytes = of_range::<T>(&range, self.len_bytes());
        <[T]>::mut_from_bytes(&mut self.bytes_mut()[bytes]).unwrap_or_else(|_| unaligned::<T>())
    }

    /// For hints, snapshots and counters.
    pub const fn handle(&self) -> Handle<'_> {
        Handle { region: self }
    }

    /// All values of the region, and a handle for other threads meanwhile: snapshots are made while these change.
    ///
    /// # Panics
    /// In a forked child.
    pub fn split_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self) -> (&mut [T], Handle<'_>) {
        let range = 0..self.len_bytes() / size_of::<T>().max(1);
        let values: *mut [T] = self.view_mut::<T>(range);
        // SAFETY: the borrow of `self` goes on in both results. The handle reaches no byte of the region: the pager moves
        // pages as the kernel does under any memory.
        (unsafe { &mut *values }, Handle { region: self })
    }

    fn require_own(&self) {
        assert!(
            !self.made_in.is_inherited(),
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
        // A forked child has neither the thread nor the memory.
        if self.made_in.is_inherited() {
            std::mem::forget(self.pager.take());
            std::mem::forget(Arc::clone(&self.mapping));
            return;
        }
        self.inbox.push(Message::Close);
        if let Some(pager) = self.pager.take() {
            // A panic was printed by its thread.
            let _ = pager.join();
        }
    }
}

/// What can be done with a region from any thread, while others use its memory.
#[derive(Clone, Copy)]
pub struct Handle<'a> {
    region: &'a RemoteRegion,
}

impl Handle<'_> {
    /// These bytes will be used soon: pages that are not resident are fetched, as far as there is room.
    ///
    /// # Panics
    /// If the range is not inside of the region.
    pub fn will_need(&self, bytes: std::ops::Range<usize>) {
        self.hint(&bytes, Message::WillNeed);
    }

    /// These bytes will not be used for some time: their pages leave local memory as soon as they are stored. They keep
    /// their contents. A page that could not be had is asked for anew when it is touched the next time.
    ///
    /// # Panics
    /// If the range is not inside of the region.
    pub fn dont_need(&self, bytes: std::ops::Range<usize>) {
        self.hint(&bytes, Message::DontNeed);
    }

    fn hint(&self, bytes: &std::ops::Range<usize>, message: impl FnOnce(std::ops::Range<u32>) -> Message) {
        let range = of_range::<u8>(bytes, self.region.len_bytes());
        if range.is_empty() || self.region.made_in.is_inherited() {
            return;
        }
        let pages = (range.start / PAGE_BYTES) as u32..range.end.div_ceil(PAGE_BYTES) as u32;
        self.region.inbox.push(message(pages));
    }

    /// How it stands; nothing but zeros in a forked child, or if the region has failed.
    pub fn status(&self) -> RegionStatus {
        if self.region.made_in.is_inherited() {
            return RegionStatus::default();
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        self.region.inbox.push(Message::Status(sender));
        self.receive(&receiver).unwrap_or_default()
    }

    /// Writes the region as it is at one moment to a file, while other threads go on. The moment is after this was called:
    /// what happened before it is in the file, and nothing that happens after it has returned. A file of that name is
    /// replaced when the new one is whole.
    ///
    /// # Errors
    /// If a page cannot be had, the file cannot be written, or another snapshot is being made.
    pub fn snapshot(&self, path: impl AsRef<Path>) -> Result<(), SnapshotError> {
        if self.region.made_in.is_inherited() {
            return Err(SnapshotError::Forked);
        }
        let mut writer = Writer::create(path.as_ref(), self.region.len_bytes() as u64)?;
        let (queue, (sender, receiver)) = (Arc::new(SavedQueue::default()), mpsc::channel());
        self.region.inbox.push(Message::Save(Saving::new(sender, Arc::clone(&queue))));
        let taker = Taker { inbox: &self.region.inbox, queue };
        loop {
            match self.receive(&receiver).ok_or(SnapshotError::Closed)? {
                Saved::Page { page, bytes } => {
                    taker.took_one();
                    writer.page(page.into(), &bytes)?;
                }
                Saved::End(result) => {
                    result?;
                    return Ok(writer.finish()?);
                }
            }
        }
    }

    /// Waits for the pager's answer, as long as there is a pager.
    fn receive<T>(&self, receiver: &mpsc::Receiver<T>) -> Option<T> {
        loop {
            match receiver.recv_timeout(LOOK_PERIOD) {
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

/// Who takes what the pager saves. When it goes, the pager saves no more.
struct Taker<'a> {
    inbox: &'a WakeQueue<Message>,
    queue: Arc<SavedQueue>,
}

impl Taker<'_> {
    fn took_one(&self) {
        let left = self.queue.queued.fetch_sub(1, Ordering::Relaxed) - 1;
        // The pager may sleep, since it had sent enough.
        if left == QUEUED_MAX / 2 {
            self.inbox.push(Message::Taken);
        }
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.queue.is_abandoned.store(true, Ordering::Relaxed);
        self.inbox.push(Message::Taken);
    }
}
