//! Functions that change mappings.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use libc::{off_t, size_t};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MremapFlags, ProtFlags};

use super::{export, export_before};
use crate::{errno, libc_next, pointers};

/// Returns an address; sets `errno` if there is none.
fn mapped(result: Result<*mut c_void, Errno>) -> *mut c_void {
    result.unwrap_or_else(|error| {
        errno::set(error.raw_os_error());
        libc::MAP_FAILED
    })
}

export_before! { pointers::before_change:
    fn munmap(at: *mut c_void, len: size_t) -> c_int;
    fn mprotect(at: *mut c_void, len: size_t, access: c_int) -> c_int;
    fn pkey_mprotect(at: *mut c_void, len: size_t, access: c_int, key: c_int) -> c_int;
    fn shmdt(at: *const c_void) -> c_int;
    fn brk(end: *mut c_void) -> c_int;
}

// `mmap` and `mremap` call the kernel and not the C library's functions: an allocator may call them before the loader
// can find these, and finding them allocates.
export! {
    fn mmap(at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        if flags & libc::MAP_FIXED != 0 {
            pointers::before_change();
        }
        let access = ProtFlags::from_bits_retain(access as u32);
        let kinds = MapFlags::from_bits_retain(flags as u32);
        if flags & libc::MAP_ANONYMOUS != 0 {
            // SAFETY: a mapping that replaces another one replaces one of the program's, as mmap(2) requires.
            return mapped(unsafe { mm::mmap_anonymous(at, len, access, kinds) });
        }
        if fd < 0 {
            return mapped(Err(Errno::BADF));
        }
        // SAFETY: a mapping that replaces another one replaces one of the program's, as mmap(2) requires; the kernel
        // checks the descriptor.
        mapped(unsafe { mm::mmap(at, len, access, kinds, BorrowedFd::borrow_raw(fd), offset as u64) })
    }

    // The last argument is passed on, whether the caller passed it or not.
    fn mremap(at: *mut c_void, len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void {
        const FIXED: u32 = libc::MREMAP_FIXED as u32;
        pointers::before_change();
        let kinds = MremapFlags::from_bits_retain(flags as u32 & !FIXED);
        // SAFETY: the program changes what it has mapped itself, and refers to it accordingly, as mremap(2) requires.
        mapped(unsafe {
            if flags as u32 & FIXED == 0 {
                mm::mremap(at, len, new_len, kinds)
            } else {
                mm::mremap_fixed(at, len, new_len, kinds, new)
            }
        })
    }

    fn sbrk(increment: isize) -> *mut c_void {
        if increment < 0 {
            pointers::before_change();
        }
        // SAFETY: the program refers to nothing behind the new end, as brk(2) requires.
        unsafe { libc_next::sbrk(increment) }
    }
}
