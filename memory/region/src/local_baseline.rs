//! Local baseline of page faults through userfaultfd: a thread that only copies pages from local memory. No region can
//! be faster; measurements are compared with it.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use farcall_drive::{Driver, Stop};
use farcall_link::WaitStrategy;
use farcall_memory::PAGE_BYTES;
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Progress, WaitSet, with_sources};

use crate::paged_memory::{Mapping, PagedMemory};
use crate::region::POLLS;

/// Memory whose missing pages are filled from local memory.
pub struct LocalFaultBaseline {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    mapping: Arc<Mapping>,
}

farcall_verbs::opaque_debug!(LocalFaultBaseline);

struct Copier {
    paged: PagedMemory,
    page: [u8; PAGE_BYTES],
    is_broken: bool,
}

impl Endpoint for Copier {
    fn progress(&mut self, _now: Nanos) -> Progress {
        let Self { paged, page, .. } = self;
        let read = paged.uffd().faults(|fault| {
            if let Some(at) = paged.page_of(fault) {
                // The page may be present already: an earlier fault of another thread on it was resolved, which woke
                // this thread as well.
                let _ = paged.install(at, page);
            }
        });
        match read {
            Ok(0) => Progress::IDLE,
            Ok(_) => Progress::Again,
            Err(_) => {
                self.is_broken = true;
                Progress::IDLE
            }
        }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        Ok(())
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.paged.uffd().fd());
    }
}

impl LocalFaultBaseline {
    /// Creates `pages` missing pages, all of whose bytes will be `byte`.
    ///
    /// # Errors
    /// Returns an error if userfaultfd lacks a required feature (see [`crate::Preflight`]) or memory cannot be mapped.
    pub fn new(pages: usize, byte: u8) -> io::Result<Self> {
        let (paged, _) = PagedMemory::new(pages * PAGE_BYTES, 1)?;
        let (mapping, stop) = (Arc::clone(paged.region()), Stop::new()?);
        let mut copier = Copier { paged, page: [byte; PAGE_BYTES], is_broken: false };
        let mut driver =
            Driver::new(MonotonicClock::new(), WaitStrategy::Adaptive { max_retry: POLLS }, stop.clone());
        let run = move || {
            if let Err(error) = driver.run_until(&mut copier, |copier| copier.is_broken) {
                eprintln!("farcall region: {}", with_sources(&error));
            }
        };
        let thread = Some(std::thread::Builder::new().name("bare-faults".into()).spawn(run)?);
        Ok(Self { stop, thread, mapping })
    }

    /// Returns all bytes. The first access to each page causes a fault.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `self.mapping` keeps the range mapped for the lifetime of the result. No code writes to it: the
        // copier only fills missing pages, before the first access returns.
        unsafe { std::slice::from_raw_parts(self.mapping.address().as_ptr(), self.mapping.len_bytes()) }
    }
}

impl Drop for LocalFaultBaseline {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the panic hook.
            let _ = thread.join();
        }
    }
}
