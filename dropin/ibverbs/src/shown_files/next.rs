//! The functions that ours replace: the C library's, or those of another preloaded library.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function, found once.
pub struct Next {
    /// With a zero at its end.
    name: &'static str,
    /// For names that the C library keeps for old programs only: their version.
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

/// The version of what was there when the architecture came to the C library.
pub const OLDEST: &CStr = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

impl Next {
    pub const fn new(name: &'static str, version: Option<&'static CStr>) -> Self {
        assert!(matches!(name.as_bytes(), [.., 0]), "a C string");
        Self { name, version, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null if no library has such a function.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    /// Looks for it. At the start of a program, so that a child between fork and exec never has to.
    #[cold]
    pub fn find(&self) -> *mut c_void {
        // SAFETY: C strings, as `new` checks; the loader's own functions.
        let found = unsafe {
            match self.version {
                None => libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()),
                Some(version) => libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr().cast(), version.as_ptr()),
            }
        };
        // Every thread stores the same address.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}
