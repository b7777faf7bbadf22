//! Functions that load objects, whose code may use connections without the library.

use std::ffi::{c_char, c_int, c_void};

use super::export;
use crate::{direct_calls, libc_next};

/// Returns whether an object is loaded that calls its own libraries' functions before those of this library.
fn avoids_the_library(flags: c_int) -> bool {
    flags & libc::RTLD_DEEPBIND != 0
}

export! {
    // Another namespace has a C library of its own.
    fn dlmopen(namespace: libc::Lmid_t, file: *const c_char, flags: c_int) -> *mut c_void {
        if namespace != libc::LM_ID_BASE || avoids_the_library(flags) {
            direct_calls::record_found("an object that does not call this library (dlmopen, RTLD_DEEPBIND)");
        }
        // SAFETY: `file` is null or a C string of the program's, which the loader alone reads.
        let loaded = unsafe { libc_next::dlmopen(namespace, file, flags) };
        direct_calls::after_load();
        loaded
    }
}

#[cfg(target_arch = "x86_64")]
mod by_caller {
    use std::ffi::{CStr, c_char, c_int, c_void};

    use super::super::forward::{forward, next};
    use crate::{direct_calls, libc_next};

    /// Chooses how to load an object. The loader searches for a name without a slash also in directories that the
    /// caller's object names, so the loader must see the caller. Then this library does not inspect the loaded object
    /// before the program uses it.
    unsafe extern "C" fn before_dlopen(
        file: *const c_char,
        flags: c_int,
        _: usize,
        caller: usize,
    ) -> *mut c_void {
        if super::avoids_the_library(flags) {
            direct_calls::record_found("an object that does not call this library (RTLD_DEEPBIND)");
        }
        // SAFETY: null, or the caller's C string.
        let name = (!file.is_null()).then(|| unsafe { CStr::from_ptr(file) }.to_bytes());
        let depends_on_caller = name.is_some_and(|name| name.contains(&b'$') || !name.contains(&b'/'))
            && direct_calls::has_search_path(caller);
        if name.is_none() || flags & libc::RTLD_NOLOAD != 0 {
            return next(c"dlopen");
        }
        if depends_on_caller {
            direct_calls::before_unseen_load();
            return next(c"dlopen");
        }
        load as *mut c_void
    }

    unsafe extern "C-unwind" fn load(file: *const c_char, flags: c_int) -> *mut c_void {
        // SAFETY: `file` is null or a C string of the program's, which the loader alone reads.
        let loaded = unsafe { libc_next::dlopen(file, flags) };
        direct_calls::after_load();
        loaded
    }

    /// Chooses how to find a symbol. A handle of the C library leads past this library, whose function is returned
    /// instead; without a handle the loader must see the caller.
    unsafe extern "C" fn before_dlsym(handle: *mut c_void, _name: *const c_char) -> *mut c_void {
        let has_handle = handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT;
        let find = libc_next::find_symbol().map_or(std::ptr::null_mut(), |find| find as *mut c_void);
        if has_handle { find_in_object as *mut c_void } else { find }
    }

    unsafe extern "C" fn find_in_object(handle: *mut c_void, name: *const c_char) -> *mut c_void {
        // SAFETY: `name` is a C string of the program's, and `handle` one that the loader returned to it.
        let found = unsafe { libc_next::symbol(handle, name) };
        if found.is_null() {
            return found;
        }
        // SAFETY: the caller's C string, which named a symbol.
        let [first, next] =
            [libc::RTLD_DEFAULT, libc::RTLD_NEXT].map(|from| unsafe { libc_next::symbol(from, name) });
        if found == next && direct_calls::is_own(first.addr()) { first } else { found }
    }

    forward! {
        dlopen => before_dlopen;
        dlsym => before_dlsym;
    }
}
