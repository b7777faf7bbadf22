//! The C library's functions with path arguments, as called by programs.
//!
//! `open` and similar functions take the mode as a variable argument. On the supported architectures it is passed like
//! a third or fourth fixed argument, and is not used if the caller passed none.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::{mem, ptr};

use libc::{mode_t, ssize_t};

use super::next::{Next, OLDEST};
use super::{redirected, tree};
use crate::errno;

/// Functions that precede the C library's. The path argument is redirected into the tree if the tree contains that
/// file, and a returned path is converted by `then`. They may unwind, because a thread can be cancelled inside of
/// `open`.
macro_rules! interpose {
    ($(
        $(#[$version:ident])?
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty, or $failed:expr,
            at $path:ident $(, then $then:ident)?;
    )*) => {
        #[allow(non_upper_case_globals, reason = "the functions' names")]
        mod next {
            use super::{Next, OLDEST};
            $(pub static $name: Next = Next::new(concat!(stringify!($name), "\0"), interpose!(@version $($version)?));)*
        }

        $(
            /// See the manual page; files of RDMA devices are redirected.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                let next = next::$name.address();
                if next.is_null() {
                    errno::set(libc::ENOSYS);
                    return $failed;
                }
                type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                // SAFETY: the C library's function with this name has this type.
                let next = unsafe { mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: contract of the interposed function: the path is null or a C string.
                let ours = unsafe { redirected($path) };
                let $path = ours.as_ref().map_or($path, |ours| ours.as_ptr());
                // SAFETY: the caller's arguments are valid for this function; the replaced path outlives the call.
                let returned = unsafe { next($($arg),*) };
                // SAFETY: the returned path is null or a C string that belongs to the caller.
                $(let returned = if ours.is_some() { unsafe { $then(returned) } } else { returned };)?
                returned
            }
        )*

        /// Looks up all functions before the program begins.
        extern "C" fn find_all() {
            $(next::$name.find();)*
        }
    };
    (@version) => { None };
    (@version old) => { Some(OLDEST) };
}

interpose! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1, at path;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1, at path;
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1, at path;
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1, at path;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int, or -1, at path;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int, or -1, at path;
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, or -1, at path;
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, or -1, at path;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, or ptr::null_mut(), at path;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, or ptr::null_mut(), at path;
    fn stat(path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    fn stat64(path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    fn lstat(path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    fn lstat64(path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    fn fstatat(dir: c_int, path: *const c_char, into: *mut c_void, flags: c_int) -> c_int, or -1, at path;
    fn fstatat64(dir: c_int, path: *const c_char, into: *mut c_void, flags: c_int) -> c_int, or -1, at path;
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut c_void) -> c_int, or -1, at path;
    #[old] fn __xstat(version: c_int, path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    #[old] fn __xstat64(version: c_int, path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    #[old] fn __lxstat(version: c_int, path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    #[old] fn __lxstat64(version: c_int, path: *const c_char, into: *mut c_void) -> c_int, or -1, at path;
    fn access(path: *const c_char, mode: c_int) -> c_int, or -1, at path;
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, or -1, at path;
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int, or -1, at path;
    fn eaccess(path: *const c_char, mode: c_int) -> c_int, or -1, at path;
    fn readlink(path: *const c_char, into: *mut c_char, len: usize) -> ssize_t, or -1, at path;
    fn readlinkat(dir: c_int, path: *const c_char, into: *mut c_char, len: usize) -> ssize_t, or -1, at path;
    fn __readlink_chk(path: *const c_char, into: *mut c_char, len: usize, room: usize) -> ssize_t, or -1, at path;
    // Called by `ls -l` for access control lists.
    fn getxattr(path: *const c_char, name: *const c_char, into: *mut c_void, len: usize) -> ssize_t, or -1, at path;
    fn lgetxattr(path: *const c_char, name: *const c_char, into: *mut c_void, len: usize) -> ssize_t, or -1, at path;
    fn listxattr(path: *const c_char, into: *mut c_char, len: usize) -> ssize_t, or -1, at path;
    fn llistxattr(path: *const c_char, into: *mut c_char, len: usize) -> ssize_t, or -1, at path;
    fn opendir(path: *const c_char) -> *mut c_void, or ptr::null_mut(), at path;
    fn scandir(
        path: *const c_char, list: *mut c_void, filter: *mut c_void, compare: *mut c_void
    ) -> c_int, or -1, at path;
    fn scandir64(
        path: *const c_char, list: *mut c_void, filter: *mut c_void, compare: *mut c_void
    ) -> c_int, or -1, at path;
    fn realpath(
        path: *const c_char, into: *mut c_char
    ) -> *mut c_char, or ptr::null_mut(), at path, then as_the_kernels;
    fn __realpath_chk(
        path: *const c_char, into: *mut c_char, room: usize
    ) -> *mut c_char, or ptr::null_mut(), at path, then as_the_kernels;
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char, or ptr::null_mut(), at path, then as_the_kernels;
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = find_all;

/// Removes the tree's path from the front of a resolved path, because the program passed the kernel's path.
///
/// # Safety
/// `path` must be null or a C string that may be modified.
unsafe fn as_the_kernels(path: *mut c_char) -> *mut c_char {
    let Some(root) = tree::root().filter(|_| !path.is_null()) else { return path };
    // SAFETY: contract of this function: `path`, which is not null, is a C string.
    let resolved = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let Some(rest) = resolved.strip_prefix(root.as_os_str().as_bytes()) else { return path };
    if rest.first() == Some(&b'/') {
        // SAFETY: `rest` is the end of the string at `path`, including the terminating zero; `ptr::copy` permits the
        // overlap.
        unsafe { ptr::copy(rest.as_ptr(), path.cast::<u8>(), rest.len()) };
    }
    path
}
