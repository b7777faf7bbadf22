//! The replaced functions: those of the C library, or of another preloaded library.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function, looked up once.
pub struct Next {
    /// Ends with a zero byte.
    name: &'static str,
    /// The version, for names that the C library provides only for old programs.
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

/// The version of the symbols that existed when the architecture was added to the C library.
pub const OLDEST: &CStr = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

impl Next {
    pub const fn new(name: &'static str, version: Option<&'static CStr>) -> Self {
        assert!(matches!(name.as_bytes(), [.., 0]), "a C string");
        Self { name, version, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns its address; null if no library has such a function.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    /// Looks up the function. Called at program start, so that a child between fork and exec never has to.
    #[cold]
    pub fn find(&self) -> *mut c_void {
        // SAFETY: the strings end with a zero byte (checked by `new`), and the functions belong to the dynamic loader.
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
