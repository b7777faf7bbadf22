//! Arguments of C programs: null and misaligned ones are refused; that the others point to what they should is the
//! program's promise.

use std::ffi::{CStr, c_char, c_void};

use farcall::binding::Failure;

fn check<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{name}: a null pointer")));
    }
    if !pointer.is_aligned() {
        let (at, align) = (pointer.addr(), align_of::<T>());
        return Err(Failure::invalid(format!("{name}: the pointer {at:#x} is not aligned to {align} bytes")));
    }
    Ok(())
}

/// What a pointer points to.
///
/// # Safety
/// Unless null or misaligned, it points to a `T` that nobody changes during the call.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: checked, and the caller's promise.
    Ok(unsafe { &*pointer })
}

/// Where something goes.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// Unless null or misaligned, a `T` may be written there during the call.
    pub unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        check(pointer, name)?;
        Ok(Self(pointer))
    }

    pub fn set(&self, value: T) {
        // SAFETY: the promise of whoever made it; what was there is plain data or not initialised.
        unsafe { self.0.write(value) };
    }
}

/// Bytes that a program lends for the call; null is none.
///
/// # Safety
/// Unless null, so many bytes may be read there, and nobody changes them during the call.
pub(crate) unsafe fn bytes<'a>(
    start: *const c_void,
    len_bytes: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    if start.is_null() && len_bytes == 0 {
        return Ok(&[]);
    }
    check(start.cast::<u8>(), name)?;
    check_length(len_bytes, name)?;
    // SAFETY: checked, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len_bytes) })
}

/// Room that a program lends for the call.
///
/// # Safety
/// Unless null, so many bytes may be written there, and nobody else uses them during the call.
pub(crate) unsafe fn room<'a>(
    start: *mut c_void,
    len_bytes: usize,
    name: &str,
) -> Result<&'a mut [u8], Failure> {
    if start.is_null() && len_bytes == 0 {
        return Ok(&mut []);
    }
    check(start.cast_const().cast::<u8>(), name)?;
    check_length(len_bytes, name)?;
    // SAFETY: checked, and the caller's promise. What a program has not written yet is bytes of some value: it comes
    // from outside of Rust.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len_bytes) })
}

fn check_length(len_bytes: usize, name: &str) -> Result<(), Failure> {
    if isize::try_from(len_bytes).is_err() {
        return Err(Failure::invalid(format!("{name}: {len_bytes} bytes are more than there is memory")));
    }
    Ok(())
}

/// A text that ends with a zero byte.
///
/// # Safety
/// Unless null, it is one, and nobody changes it during the call.
pub(crate) unsafe fn text<'a>(start: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(start, name)?;
    // SAFETY: checked, and the caller's promise.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map_err(|error| Failure::invalid(format!("{name}: not UTF-8: {error}")))
}

/// Writes a text with its zero byte into a program's room.
///
/// # Safety
/// As of [`room`].
pub(crate) unsafe fn write_text(
    text: &str,
    into: *mut c_char,
    into_len_bytes: usize,
    name: &str,
) -> Result<(), Failure> {
    // SAFETY: passed on.
    let into = unsafe { room(into.cast(), into_len_bytes, name)? };
    let needed = text.len() + 1;
    if into.len() < needed {
        let given = into.len();
        return Err(Failure::invalid(format!("{name}: {given} bytes of room, {needed} are needed")));
    }
    into[..text.len()].copy_from_slice(text.as_bytes());
    into[text.len()] = 0;
    Ok(())
}
