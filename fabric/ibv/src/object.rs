//! Objects created by libibverbs, destroyed when dropped.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use farcall_verbs::{Error, Result};

use crate::fault;

/// An object of libibverbs. The objects that it was created from must outlive it, so a structure declares its object
/// before those.
pub(crate) struct Object<T> {
    raw: NonNull<T>,
    /// Kind of the object, for log messages.
    what: &'static str,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
}

// SAFETY: libibverbs' objects may be used from several threads at once; the fields that this crate reads never change.
unsafe impl<T> Send for Object<T> {}
// SAFETY: libibverbs' objects may be used from several threads at once; the fields that this crate reads never change.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Wraps the result of a creation function of the library.
    ///
    /// # Errors
    /// Returns the error from `fail` if `made` is null.
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
        // SAFETY: only this call destroys the object, by the contract of `new`. Objects created from it hold a
        // reference to its owner, so none exists any more.
        fault::note_destroy(self.what, unsafe { (self.destroy)(self.raw.as_ptr()) });
    }
}
