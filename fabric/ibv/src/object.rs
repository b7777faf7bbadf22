//! Objects that libibverbs made: destroyed when dropped.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use farcall_verbs::{Error, Result};

use crate::fault;

/// What it was made of must outlive it: a structure names its object before the ones that the object was made of.
pub(crate) struct Object<T> {
    raw: NonNull<T>,
    /// For the log.
    what: &'static str,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
}

// SAFETY: libibverbs' objects may be used from any thread at once; the fields that are read here never change.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Takes what a function of the library returned.
    ///
    /// # Errors
    /// What `fail` says, if that is null.
    ///
    /// # Safety
    /// `made` must be null or an object that `destroy` destroys and nothing else does.
    pub(crate) unsafe fn new(
        made: *mut T,
        what: &'static str,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
        fail: impl FnOnce(io::Error) -> Error,
    ) -> Result<Self> {
        Ok(Self { raw: fault::non_null(made, fail)?, what, destroy })
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`; what was made of it held a reference to its owner and is gone.
        fault::note_destroy(self.what, unsafe { (self.destroy)(self.raw.as_ptr()) });
    }
}
