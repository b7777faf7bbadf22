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
const SAVES_PER_ITERATION: usize = 16;
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
pub(crate) struct Snapshot {
    to: mpsc::Sender<Saved>,
    queue: Arc<SavedQueue>,
    /// Bitmap of saved pages.
    saved: Vec<u64>,
    next: u32,
    /// Number of reads in flight.
    reads: usize,
    busy: u32,
}

impl Snapshot {
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
            // The receiver may have been dropped.
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
    pub(super) fn begin_snapshot(&mut self, mut snapshot: Snapshot) {
        if self.snapshot.is_some() {
            let _ = snapshot.to.send(Saved::End(Err(SnapshotError::InProgress)));
            return;
        }
        snapshot.saved = vec![0; self.states.len().div_ceil(64)];
        let protected = self.paged.protect_all();
        self.snapshot = Some(snapshot);
        if let Err(error) = protected {
            self.end_snapshot(Err(SnapshotError::System(error)));
        }
    }

    fn end_snapshot(&mut self, result: Result<(), SnapshotError>) {
        if let Some(snapshot) = self.snapshot.take() {
            self.is_broken |= self.paged.unprotect_all().is_err();
            let _ = snapshot.to.send(Saved::End(result));
        }
    }

    /// Returns whether a page must not change yet and cannot be saved now.
    pub(super) fn must_wait_for_snapshot(&self, page: u32) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| !snapshot.is_saved(page) && snapshot.is_full())
    }

    pub(super) fn save_zeros(&mut self, page: u32) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.save(page, None);
        }
    }

    pub(super) fn save_staged(&mut self, page: u32, slot: u32) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.save(page, Some(self.paged.staged_bytes(slot as usize)));
        }
    }

    /// Saves fetched pages, which no thread could access since the moment of the snapshot.
    pub(super) fn save_fetched(&mut self, first: u32, bytes: &[u8]) {
        if let Some(snapshot) = &mut self.snapshot {
            (first..)
                .zip(bytes.chunks(PAGE_BYTES))
                .for_each(|(page, bytes)| snapshot.save(page, Some(bytes)));
        }
    }

    /// Saves a resident page if it is not saved yet. Returns `false` if that is not possible now.
    pub(super) fn save_resident(&mut self, page: u32) -> bool {
        let Some(snapshot) = &mut self.snapshot else { return true };
        if snapshot.is_saved(page) {
            return true;
        }
        if snapshot.is_full() {
            return false;
        }
        match self.paged.move_out(page as usize, SCRATCH) {
            Moved::Yes => {}
            Moved::Missing => {
                self.fifo.remove(page);
                self.poison(page);
                self.end_snapshot(Err(SnapshotError::Gone { page: page.into() }));
                return true;
            }
            Moved::Busy => {
                snapshot.busy += 1;
                if snapshot.busy > BUSY_MAX {
                    self.end_snapshot(Err(SnapshotError::Busy { page: page.into() }));
                }
                return self.snapshot.is_none();
            }
        }
        snapshot.busy = 0;
        snapshot.save(page, Some(self.paged.staged_bytes(SCRATCH)));
        if self.paged.move_in(SCRATCH, page as usize) != Moved::Yes {
            let bytes = self.paged.staged_bytes(SCRATCH).to_vec();
            let is_back = self.paged.install(page as usize, &bytes).is_ok();
            self.is_broken |= !is_back || self.paged.free_slots(SCRATCH, 1).is_err();
        }
        true
    }

    /// Saves some pages in ascending order. Returns whether there was progress.
    pub(super) fn continue_snapshot(&mut self) -> bool {
        let mut any = false;
        for _ in 0..SAVES_PER_ITERATION {
            let Some(snapshot) = &self.snapshot else { return any };
            if snapshot.is_abandoned() {
                self.end_snapshot(Ok(()));
                return true;
            }
            let (page, is_full) = (snapshot.next, snapshot.is_full());
            if page as usize == self.states.len() {
                if snapshot.reads == 0 {
                    self.end_snapshot(Ok(()));
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
        let is_saved = self.snapshot.as_ref().is_some_and(|snapshot| snapshot.is_saved(page));
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
                let Some(slot) = self.staging.slot_of(page) else { return false };
                self.save_staged(page, slot);
            }
            RESIDENT => {
                if !self.save_resident(page) {
                    return false;
                }
            }
            POISONED.. => self.end_snapshot(Err(SnapshotError::Gone { page: page.into() })),
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.next = next;
        }
        true
    }

    /// Requests absent pages, beginning with `first`. Returns the next page that was not requested.
    fn read_absent(&mut self, first: u32) -> Option<u32> {
        let snapshot = self.snapshot.as_mut()?;
        if !self.memory.is_written(first.into()) {
            snapshot.save(first, None);
            return Some(first + 1);
        }
        if snapshot.reads == READS_MAX || !self.memory.has_room(RUN_PAGES) {
            return None;
        }
        let can_join_read = |page: &u32| {
            self.states.get(*page as usize) == Some(&ABSENT) && self.memory.is_written((*page).into())
        };
        let count = (first..).take(RUN_PAGES).take_while(can_join_read).count();
        snapshot.reads += 1;
        self.submit(Purpose::Save, first, Work::Read { len_bytes: count * PAGE_BYTES });
        Some(first + count as u32)
    }

    /// Saves absent pages that were read for the snapshot.
    pub(super) fn save_read(&mut self, first: u32, result: Result<Vec<u8>, IoError>) {
        let Some(snapshot) = &mut self.snapshot else { return };
        snapshot.reads -= 1;
        match result {
            Ok(bytes) => self.save_fetched(first, &bytes),
            Err(error) => self.end_snapshot(Err(SnapshotError::Io(error))),
        }
    }
}
