//! The bare way of a page fault through userfaultfd: a thread that copies pages from local memory, and does nothing else.
//! No region can be faster; measurements are taken beside it.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use farcall_drive::{Driver, Stop};
use farcall_link::Waiting;
use farcall_memory::PAGE_BYTES;
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next, WaitSet};

use crate::paged_memory::{Mapping, PagedMemory};
use crate::region::POLLS;

/// Memory whose missing pages come from local memory.
pub struct BareFaults {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    mapping: Arc<Mapping>,
}

struct Copier {
    paged: PagedMemory,
    page: [u8; PAGE_BYTES],
    is_broken: bool,
}

impl Endpoint for Copier {
    fn progress(&mut self, _now: Nanos) -> Next {
        let Self { paged, page, .. } = self;
        let read = paged.uffd().faults(|fault| {
            if let Some(at) = paged.page_of(fault) {
                // It is there already: another thread's fault was first, and woke this one.
                let _ = paged.install(at, page);
            }
        });
        match read {
            Ok(0) => Next::IDLE,
            Ok(_) => Next::Again,
            Err(_) => {
                self.is_broken = true;
                Next::IDLE
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

impl BareFaults {
    /// So many pages, all of which are missing, and whose bytes are all this one.
    ///
    /// # Errors
    /// If the system does not offer what is needed.
    pub fn new(pages: usize, byte: u8) -> io::Result<Self> {
        let (paged, _) = PagedMemory::new(pages * PAGE_BYTES, 1)?;
        let (mapping, stop) = (Arc::clone(paged.region()), Stop::new()?);
        let mut copier = Copier { paged, page: [byte; PAGE_BYTES], is_broken: false };
        let mut driver =
            Driver::new(MonotonicClock::new(), Waiting::Adaptive { max_retry: POLLS }, stop.clone());
        let run = move || {
            if let Err(error) = driver.run_until(&mut copier, |copier| copier.is_broken) {
                eprintln!("farcall region: {error}");
            }
        };
        let thread = Some(std::thread::Builder::new().name("bare-faults".into()).spawn(run)?);
        Ok(Self { stop, thread, mapping })
    }

    /// All bytes: touch a page once, and there is a fault.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives, and nobody changes a byte.
        unsafe { std::slice::from_raw_parts(self.mapping.address().as_ptr(), self.mapping.len_bytes()) }
    }
}

impl Drop for BareFaults {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}
