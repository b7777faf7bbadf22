//! What posting to a queue pair needs, behind one lock.

use std::cell::{RefCell, RefMut};

use farcall_verbs::RawQp;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use crate::qp_ex::Batch;

pub struct Posting {
    pub provider: Box<dyn RawQp>,
    pub batch: Batch,
}

/// The lock can be held from `ibv_wr_start` to `ibv_wr_complete`, over calls of C. The thread that holds it so may make
/// other calls of the queue pair in between.
pub struct PostLock(ReentrantMutex<RefCell<Posting>>);

/// As long as it lives, other threads wait.
pub struct Locked<'a>(ReentrantMutexGuard<'a, RefCell<Posting>>);

impl PostLock {
    pub fn new(posting: Posting) -> Self {
        Self(ReentrantMutex::new(RefCell::new(posting)))
    }

    pub fn lock(&self) -> Locked<'_> {
        Locked(self.0.lock())
    }

    /// Waits for other threads and begins a batch; until it ends they wait.
    pub fn begin_batch(&self) {
        let locked = self.lock();
        locked.posting().batch.start();
        // Held until the batch ends.
        std::mem::forget(locked);
    }

    /// What a thread works on that builds a batch.
    ///
    /// # Safety
    /// The calling thread must have begun a batch.
    pub unsafe fn building(&self) -> RefMut<'_, Posting> {
        // SAFETY: this thread holds the lock.
        unsafe { (*self.0.data_ptr()).borrow_mut() }
    }

    /// # Safety
    /// The calling thread must have begun a batch, and not ended it.
    pub unsafe fn end_batch(&self) {
        // SAFETY: the guard was forgotten when the batch began.
        unsafe { self.0.force_unlock() }
    }
}

impl Locked<'_> {
    pub fn posting(&self) -> RefMut<'_, Posting> {
        self.0.borrow_mut()
    }
}
