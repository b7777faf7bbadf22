//! Snapshot of all pages at one moment, while threads continue.
//!
//! At that moment every present page is write-protected, and from then on each page is saved before it can change. A
//! resident page is saved when a thread writes to it, or when the scan reaches it. An absent page is saved when it
//! arrives, before any thread can access it. The kernel protects the pages one after another, but a thread that writes
//! to a protected one waits until all are protected. Hence the snapshot never contains a write without all earlier
//! ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use farcall_memory::{IoError, PAGE_BYTES, Work};

use super::{ABSENT, FETCHING, POISONED, Pager, Purpose, RESIDENT, STAGED};
use crate::paged_memory::Moved;
use crate::snapshot::SnapshotError;

/// Maximum number of pages that wait to be written to the file. Beyond it, threads that would change further pages
/// wait.
pub(crate) const QUEUED_MAX: usize = 256;
/// Pages per read of absent pages, and maximum number of such reads in flight.
const RUN_PAGES: usize = 32;
const READS_MAX: usize = 4;
/// Maximum number of pages saved in one driver iteration.
const SAVED_IN_A_TURN: usize = 16;
/// Maximum number of attempts to move a page.
const BUSY_MAX: u32 = 10_000;
/// Staging slot reserved for snapshots.
const SCRATCH: usize = 0;

/// Message to the thread that writes the file.
pub(crate) enum Saved {
    Page { page: u32, bytes: Vec<u8> },
    End(Result<(), SnapshotError>),
}

/// State shared by the pager and the thread that writes the file.
#[derive(Default)]
pub(crate) struct SavedQueue {
    /// Number of pages that were sent and not consumed.
    pub queued: AtomicUsize,
    /// `true` once the thread no longer writes the file.
    pub is_abandoned: AtomicBool,
}

/// A snapshot in progress.
pub(crate) struct Saving {
    to: mpsc::Sender<Saved>,
    queue: Arc<SavedQueue>,
    /// Bitmap of saved pages.
    saved: Vec<u64>,
    next: u32,
    /// Number of reads in flight.
    reads: usize,
    busy: u32,
}

impl Saving {
    pub const fn new(to: mpsc::Sender<Saved>, queue: Arc<SavedQueue>) -> Self {
        Self { to, queue, saved: Vec::new(), next: 0, reads: 0, busy: 0 }
    }

    fn is_saved(&self, page: u32) -> bool {
        self.saved[page as usize / 64] & 1 << (page % 64) != 0
    }

    fn save(&mut self, page: u32, bytes: Option<&[u8]>) {
        if self.is_saved(page) {
            return;
        }
        self.saved[page as usize / 64] |= 1 << (page % 64);
        if let Some(bytes) = bytes.filter(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            self.queue.queued.fetch_add(1, Ordering::Relaxed);
            // The receiver may have gone.
            let _ = self.to.send(Saved::Page { page, bytes: bytes.to_vec() });
        }
    }

    fn is_abandoned(&self) -> bool {
        self.queue.is_abandoned.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.queue.queued.load(Ordering::Relaxed) >= QUEUED_MAX && !self.is_abandoned()
    }
}

impl Pager {
    pub(super) fn begin_saving(&mut self, mut saving: Saving) {
        if self.saving.is_some() {
            let _ = saving.to.send(Saved::End(Err(SnapshotError::UnderWay)));
            return;
        }
        saving.saved = vec![0; self.states.len().div_ceil(64)];
        let protected = self.paged.protect_all();
        self.saving = Some(saving);
        if let Err(error) = protected {
            self.end_saving(Err(SnapshotError::System(error)));
        }
    }

    fn end_saving(&mut self, result: Result<(), SnapshotError>) {
        if let Some(saving) = self.saving.take() {
            self.is_broken |= self.paged.unprotect_all().is_err();
            let _ = saving.to.send(Saved::End(result));
        }
    }

    /// Returns whether a page must not change yet and cannot be saved now.
    pub(super) fn must_wait_for_saving(&self, page: u32) -> bool {
        self.saving.as_ref().is_some_and(|saving| !saving.is_saved(page) && saving.is_full())
    }

    pub(super) fn save_zeros(&mut self, page: u32) {
        if let Some(saving) = &mut self.saving {
            saving.save(page, None);
        }
    }

    pub(super) fn save_staged(&mut self, page: u32, place: u32) {
        if let Some(saving) = &mut self.saving {
            saving.save(page, Some(self.paged.taken_out(place as usize)));
        }
    }

    /// Saves fetched pages, which no thread could access since the moment of the snapshot.
    pub(super) fn save_fetched(&mut self, first: u32, bytes: &[u8]) {
        if let Some(saving) = &mut self.saving {
            (first..).zip(bytes.chunks(PAGE_BYTES)).for_each(|(page, bytes)| saving.save(page, Some(bytes)));
        }
    }

    /// Saves a resident page if it is not saved yet. Returns `false` if that is not possible now.
    pub(super) fn save_resident(&mut self, page: u32) -> bool {
        let Some(saving) = &mut self.saving else { return true };
        if saving.is_saved(page) {
            return true;
        }
        if saving.is_full() {
            return false;
        }
        match self.paged.take_out(page as usize, SCRATCH) {
            Moved::Yes => {}
            Moved::Missing => {
                self.order.forget(page);
                self.poison(page);
                self.end_saving(Err(SnapshotError::Gone { page: page.into() }));
                return true;
            }
            Moved::Busy => {
                saving.busy += 1;
                if saving.busy > BUSY_MAX {
                    self.end_saving(Err(SnapshotError::Busy { page: page.into() }));
                }
                return self.saving.is_none();
            }
        }
        saving.busy = 0;
        saving.save(page, Some(self.paged.taken_out(SCRATCH)));
        if self.paged.put_back(SCRATCH, page as usize) != Moved::Yes {
            let bytes = self.paged.taken_out(SCRATCH).to_vec();
            let is_back = self.paged.install(page as usize, &bytes).is_ok();
            self.is_broken |= !is_back || self.paged.free_places(SCRATCH, 1).is_err();
        }
        true
    }

    /// Saves some pages in ascending order. Returns whether there was progress.
    pub(super) fn step_saving(&mut self) -> bool {
        let mut any = false;
        for _ in 0..SAVED_IN_A_TURN {
            let Some(saving) = &self.saving else { return any };
            if saving.is_abandoned() {
                self.end_saving(Ok(()));
                return true;
            }
            let (page, is_full) = (saving.next, saving.is_full());
            if page as usize == self.states.len() {
                if saving.reads == 0 {
                    self.end_saving(Ok(()));
                }
                return any;
            }
            if is_full || !self.save_next(page) {
                return any;
            }
            any = true;
        }
        any
    }

    /// Saves the next page, or requests it. Returns `false` if that is not possible now.
    fn save_next(&mut self, page: u32) -> bool {
        let is_saved = self.saving.as_ref().is_some_and(|saving| saving.is_saved(page));
        let mut next = page + 1;
        match self.state(page) {
            _ if is_saved => {}
            ABSENT => match self.read_absent(page) {
                Some(after) => next = after,
                None => return false,
            },
            // It is saved when it arrives.
            FETCHING => return false,
            STAGED => {
                let Some(place) = self.staging.place_of(page) else { return false };
                self.save_staged(page, place);
            }
            RESIDENT => {
                if !self.save_resident(page) {
                    return false;
                }
            }
            POISONED.. => self.end_saving(Err(SnapshotError::Gone { page: page.into() })),
        }
        if let Some(saving) = &mut self.saving {
            saving.next = next;
        }
        true
    }

    /// Requests absent pages, beginning with `first`. Returns the next page that was not requested.
    fn read_absent(&mut self, first: u32) -> Option<u32> {
        let saving = self.saving.as_mut()?;
        if !self.memory.is_written(first.into()) {
            saving.save(first, None);
            return Some(first + 1);
        }
        if saving.reads == READS_MAX || !self.memory.has_room(RUN_PAGES) {
            return None;
        }
        let is_like_it = |page: &u32| {
            self.states.get(*page as usize) == Some(&ABSENT) && self.memory.is_written((*page).into())
        };
        let count = (first..).take(RUN_PAGES).take_while(is_like_it).count();
        saving.reads += 1;
        self.submit(Purpose::Save, first, Work::Read { len_bytes: count * PAGE_BYTES });
        Some(first + count as u32)
    }

    /// Saves absent pages that were read for the snapshot.
    pub(super) fn read_to_save(&mut self, first: u32, result: Result<Vec<u8>, IoError>) {
        let Some(saving) = &mut self.saving else { return };
        saving.reads -= 1;
        match result {
            Ok(bytes) => self.save_fetched(first, &bytes),
            Err(error) => self.end_saving(Err(SnapshotError::Io(error))),
        }
    }
}
