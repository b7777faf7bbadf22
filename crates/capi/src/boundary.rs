//! The boundary to C: objects, and what a function returns.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, TryLockError};

use farcall_foreign::{Code, Failure};

use crate::argument::{Out, object};
use crate::errors::remember;

/// What an opaque object of the header holds. A panic leaves it poisoned, and so unusable.
pub(crate) struct Object<T>(Mutex<T>);

impl<T> Object<T> {
    pub fn new(inner: T) -> Self {
        Self(Mutex::new(inner))
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        match self.0.try_lock() {
            Ok(mut inner) => f(&mut inner),
            Err(TryLockError::WouldBlock) => Err(Code::Busy.into()),
            Err(TryLockError::Poisoned(_)) => Err(Code::Panicked.into()),
        }
    }

    /// What it held; nothing after a panic.
    pub fn into_inner(self) -> Result<T, Failure> {
        self.0.into_inner().map_err(|_| Code::Panicked.into())
    }
}

/// Runs the body of a function of the header.
pub(crate) fn returned(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Code::Panicked.into()));
    match outcome {
        Ok(()) => Code::Ok as c_int,
        Err(failure) => {
            let code = failure.code as c_int;
            remember(failure);
            code
        }
    }
}

/// Runs the body of a function that makes an object, and hands the object over. Without one the pointer is null.
///
/// # Safety
/// `into` is null, misaligned, or may be written.
pub(crate) unsafe fn made<T>(into: *mut *mut T, body: impl FnOnce() -> Result<T, Failure>) -> c_int {
    returned(|| {
        // SAFETY: passed on.
        let into = unsafe { Out::new(into, "where the new object goes")? };
        into.set(std::ptr::null_mut());
        into.set(Box::into_raw(Box::new(body()?)));
        Ok(())
    })
}

/// Takes an object back from the program; null is none.
///
/// # Safety
/// `object` is null, or came from [`made`] and was not taken back before.
pub(crate) unsafe fn taken_back<T>(taken: *mut T) -> Result<Option<Box<T>>, Failure> {
    if taken.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on.
    unsafe { object(taken, "the object")? };
    // SAFETY: it came from a box, which nobody else has.
    Ok(Some(unsafe { Box::from_raw(taken) }))
}
