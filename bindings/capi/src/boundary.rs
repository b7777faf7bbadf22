//! The boundary to C: what a function returns, how objects are handed over and taken back.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use farcall::binding::{Code, Failure};

use crate::argument::{Out, object};
use crate::errors::remember;

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
