//! State for posting to a queue pair, behind one lock.

use std::cell::{RefCell, RefMut};

use farcall_verbs::RawQp;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use crate::qp_ex::Batch;

pub struct Posting {
    pub provider: Box<dyn RawQp>,
    pub batch: Batch,
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
