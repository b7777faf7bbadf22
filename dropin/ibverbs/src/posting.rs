//! Posting: the state of a queue pair behind one lock, and chains of receives.

use std::cell::{RefCell, RefMut};
use std::ffi::c_int;

use farcall_verbs::{RawQp, RecvWr};
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use crate::batch::Batch;
use crate::errno;
use crate::region_names::{self, Elements};

pub struct Posting {
    pub provider: Box<dyn RawQp>,
    pub batch: Batch,
}

impl Posting {
    /// Ends the batch and posts it; see [`Batch::complete`].
    pub fn complete(&mut self) -> c_int {
        self.batch.complete(&mut *self.provider)
    }
}

/// Lock that can be held from `ibv_wr_start` to `ibv_wr_complete`, across calls from C. The thread that holds it may
/// make other calls for the queue pair in between.
pub struct PostLock(ReentrantMutex<RefCell<Posting>>);

/// Guard: other threads wait while it exists.
pub struct Locked<'a>(ReentrantMutexGuard<'a, RefCell<Posting>>);

impl PostLock {
    pub fn new(posting: Posting) -> Self {
        Self(ReentrantMutex::new(RefCell::new(posting)))
    }

    pub fn lock(&self) -> Locked<'_> {
        Locked(self.0.lock())
    }

    /// Waits for other threads and begins a batch; they wait until it ends.
    pub fn begin_batch(&self) {
        let locked = self.lock();
        locked.posting().batch.start();
        // The lock is held until the batch ends.
        std::mem::forget(locked);
    }

    /// Returns the state for a thread that builds a batch.
    ///
    /// # Safety
    /// The calling thread must have begun a batch, and not ended it.
    pub unsafe fn building(&self) -> RefMut<'_, Posting> {
        // SAFETY: contract of this function: this thread holds the lock since `begin_batch`.
        unsafe { (*self.0.data_ptr()).borrow_mut() }
    }

    /// # Safety
    /// The calling thread must have begun a batch, and not ended it.
    pub unsafe fn end_batch(&self) {
        // SAFETY: contract of this function: this thread holds the lock, whose guard `begin_batch` has forgotten.
        unsafe { self.0.force_unlock() }
    }
}

impl Locked<'_> {
    pub fn posting(&self) -> RefMut<'_, Posting> {
        self.0.borrow_mut()
    }
}

/// Maximum number of requests posted with one doorbell.
pub const BATCH: usize = 16;

/// Posts a chain of receives through `post`. If a receive is refused, stores it in `bad_wr`.
///
/// # Safety
/// `wr` must be a chain as required by `man ibv_post_recv`, and `bad_wr` valid.
pub unsafe fn post_receives(
    wr: *mut RecvWr<'static>,
    bad_wr: *mut *mut RecvWr<'static>,
    mut post: impl FnMut(&[RecvWr<'_>]) -> Result<(), farcall_verbs::PostError>,
) -> c_int {
    let mut next = wr;
    while !next.is_null() && region_names::are_any() {
        // SAFETY: contract of this function: `next`, which is not null, is an element of a valid chain.
        let (first, mut elements) = (unsafe { *next }, Elements::default());
        if let Err(error) = post(&[RecvWr::new(first.wr_id, elements.translated(first.sges()))]) {
            // SAFETY: contract of this function: `bad_wr` is valid.
            unsafe { *bad_wr = next };
            return errno::number(&error.source);
        }
        next = first.next.cast_mut();
    }
    while !next.is_null() {
        // SAFETY: contract of this function: `next`, which is not null, is an element of a valid chain.
        let first = unsafe { *next };
        let (mut batch, mut at, mut count) = ([first; BATCH], [next; BATCH], 0);
        while count < BATCH && !next.is_null() {
            // SAFETY: contract of this function: `next`, which is not null, is an element of a valid chain.
            batch[count] = unsafe { *next };
            at[count] = next;
            next = batch[count].next.cast_mut();
            count += 1;
        }
        if let Err(error) = post(&batch[..count]) {
            // SAFETY: contract of this function: `bad_wr` is valid.
            unsafe { *bad_wr = at[error.posted.min(BATCH - 1)] };
            return errno::number(&error.source);
        }
    }
    0
}
