//! Arguments of C programs. Null and misaligned pointers are refused. All other pointers must meet the rules of the
//! section "Pointers" of the man page farcall(3), which the `# Safety` sections here repeat for each kind of argument.

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

/// Returns a reference to the object that `pointer` addresses.
///
/// # Errors
/// Returns `FARCALL_INVALID` if `pointer` is null or misaligned.
///
/// # Safety
/// Unless null or misaligned, `pointer` addresses a valid `T` that is neither freed nor written during `'a`. Interior
/// mutability, as of the lock in an object of the library, is allowed.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: `check` found `pointer` neither null nor misaligned, so by the contract of `object` it addresses a `T`
    // that is valid and not written during `'a`.
    Ok(unsafe { &*pointer })
}

/// Output argument: memory of the program to which a result is written.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Creates an output argument.
    ///
    /// # Errors
    /// Returns `FARCALL_INVALID` if `pointer` is null or misaligned.
    ///
    /// # Safety
    /// Unless null or misaligned, `pointer` addresses memory for a `T` that is writable, and not accessed otherwise,
    /// while the returned value exists.
    pub unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        check(pointer, name)?;
        Ok(Self(pointer))
    }

    pub fn set(&self, value: T) {
        // SAFETY: `new` checked that the pointer is aligned and not null, and its contract makes the memory writable
        // while `self` exists. `write` neither reads nor drops the previous contents, which may be uninitialized.
        unsafe { self.0.write(value) };
    }
}

/// Returns an input buffer of the program. A null pointer with the length 0 is an empty buffer.
///
/// # Errors
/// Returns `FARCALL_INVALID` for any other null pointer, and for a length above `isize::MAX`.
///
/// # Safety
/// Unless `start` is null, the `len_bytes` bytes from `start` are readable and not written during `'a`.
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
    // SAFETY: `start` is not null (`check`) and `len_bytes` is at most `isize::MAX` (`check_length`). By the contract
    // of `bytes` these bytes are readable and not written during `'a`.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len_bytes) })
}

/// Returns an output buffer of the program. A null pointer with the length 0 is an empty buffer.
///
/// # Errors
/// Returns `FARCALL_INVALID` for any other null pointer, and for a length above `isize::MAX`.
///
/// # Safety
/// Unless `start` is null, the `len_bytes` bytes from `start` are writable, and not accessed otherwise, during `'a`.
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
    // SAFETY: `start` is not null (`check`) and `len_bytes` is at most `isize::MAX` (`check_length`). By the contract
    // of `room` these bytes are writable and not accessed otherwise during `'a`. Bytes that the program has not
    // written yet have some value, because the memory was allocated outside of Rust.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len_bytes) })
}

fn check_length(len_bytes: usize, name: &str) -> Result<(), Failure> {
    if isize::try_from(len_bytes).is_err() {
        return Err(Failure::invalid(format!("{name}: {len_bytes} bytes are more than there is memory")));
    }
    Ok(())
}

/// Returns a text of the program, which is UTF-8 and ends with a zero byte.
///
/// # Errors
/// Returns `FARCALL_INVALID` if `start` is null or the text is not UTF-8.
///
/// # Safety
/// Unless `start` is null, the bytes from `start` to the next zero byte are readable and not written during `'a`.
pub(crate) unsafe fn text<'a>(start: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(start, name)?;
    // SAFETY: `check` found that `start` is not null, so by the contract of `text` the bytes up to the next zero byte
    // are readable and not written during `'a`.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map_err(|error| Failure::invalid(format!("{name}: not UTF-8: {error}")))
}

/// Writes `text` and a zero byte to an output buffer of the program.
///
/// # Errors
/// Returns `FARCALL_INVALID` if the buffer is null or too short.
///
/// # Safety
/// `into` and `into_len_bytes` meet the contract of [`room`] until this function returns.
pub(crate) unsafe fn write_text(
    text: &str,
    into: *mut c_char,
    into_len_bytes: usize,
    name: &str,
) -> Result<(), Failure> {
    // SAFETY: by the contract of `write_text` the buffer meets that of `room` until this function returns, and the
    // slice is not used later.
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
