//! The boundary to C: return values of functions, and the transfer of objects to the program and back.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use farcall::binding::{Code, Failure};

use crate::argument::{Out, object};
use crate::errors::remember;

/// Runs the body of an exported function and returns its code. Stores the message of a failure for the calling thread.
/// A panic of the body becomes [`Code::Panicked`].
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

/// Runs the body of a function that creates an object, and passes the object to the program in `*into`. After a
/// failure `*into` is null.
///
/// # Safety
/// `into` meets the contract of [`Out::new`] until this function returns.
pub(crate) unsafe fn made<T>(into: *mut *mut T, body: impl FnOnce() -> Result<T, Failure>) -> c_int {
    returned(|| {
        // SAFETY: by the contract of `made`, `into` meets that of `Out::new` until `made` returns; the `Out` is
        // dropped before.
        let into = unsafe { Out::new(into, "where the new object goes")? };
        into.set(std::ptr::null_mut());
        into.set(Box::into_raw(Box::new(body()?)));
        Ok(())
    })
}

/// Takes the ownership of an object back from the program. A null pointer is no object.
///
/// # Errors
/// Returns [`Code::Invalid`] if the pointer is misaligned.
///
/// # Safety
/// Unless null or misaligned, `taken` was passed to the program by [`made`] and not taken back before, and no other
/// thread uses the object.
pub(crate) unsafe fn taken_back<T>(taken: *mut T) -> Result<Option<Box<T>>, Failure> {
    if taken.is_null() {
        return Ok(None);
    }
    // SAFETY: unless misaligned, `taken` came from `made` and was not taken back (contract of `taken_back`), so it
    // addresses a valid `T`. The reference is discarded at once.
    unsafe { object(taken, "the object")? };
    // SAFETY: `made` obtained the pointer from `Box::into_raw`. By the contract of `taken_back` it was not taken back
    // before and no other thread uses the object, so this box is its only owner.
    Ok(Some(unsafe { Box::from_raw(taken) }))
}
