//! Functions that open descriptors: when the kernel has none left, the library returns its own.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{DIR, FILE, clockid_t, mode_t, pid_t, sigset_t};

use super::export;
use crate::{descriptors, errno, libc_next, protocols};

/// Opens a descriptor for the program; the library closes as many of its own as that needs.
pub(super) fn with_free_fd(open: impl Fn() -> c_int) -> c_int {
    loop {
        let opened = open();
        if opened >= 0 || errno::get() != libc::EMFILE || !descriptors::release_one() {
            return opened;
        }
    }
}

/// Calls `open`, which returns the lowest free descriptor, like [`with_free_fd`]. Then closes descriptors of this
/// library whose numbers the program may need soon, because functions of the C library that this library does not
/// replace open descriptors, too.
pub(super) fn open_fd(open: impl Fn() -> c_int) -> c_int {
    let opened = with_free_fd(open);
    if opened >= 0 {
        let saved = errno::get();
        descriptors::release_near(opened);
        errno::set(saved);
    }
    opened
}

/// Calls `open` like [`open_fd`], and restores `name` before each attempt: functions such as `mkstemp` change a
/// name that ends in `XXXXXX` even if they fail.
///
/// # Safety
/// `name` is a C string that can be written.
unsafe fn open_with_template(name: *mut c_char, open: impl Fn() -> c_int) -> c_int {
    // SAFETY: this function's contract.
    let before = unsafe { CStr::from_ptr(name) }.to_owned();
    open_fd(|| {
        // SAFETY: a string of the same length is there.
        unsafe { name.copy_from(before.as_ptr(), before.count_bytes()) };
        open()
    })
}

/// Calls `open`, which returns a pointer, like [`with_free_fd`].
pub(super) fn with_free_fd_for<T>(open: impl Fn() -> *mut T) -> *mut T {
    loop {
        let opened = open();
        if !opened.is_null() || errno::get() != libc::EMFILE || !descriptors::release_one() {
            return opened;
        }
    }
}

/// Exports functions that pass their arguments to the C library's functions by one of the functions above.
macro_rules! export_opening {
    ($how:ident: $(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        export! {
            $(
                fn $name($($arg: $ty),*) -> $ret {
                    // SAFETY: the C library's function of that name has the contract of this one, whose arguments it
                    // gets unchanged.
                    $how(|| unsafe { libc_next::$name($($arg),*) })
                }
            )*
        }
    };
}

/// Exports functions that replace a template by a name.
macro_rules! export_template {
    ($(fn $name:ident($template:ident: $template_ty:ty $(, $arg:ident: $ty:ty)*) -> $ret:ty;)*) => {
        export! {
            $(
                fn $name($template: $template_ty $(, $arg: $ty)*) -> $ret {
                    // SAFETY: the template is a C string that can be written, as mkstemp(3) requires.
                    unsafe { open_with_template($template, || libc_next::$name($template $(, $arg)*)) }
                }
            )*
        }
    };
}

export! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: no memory is involved.
        let opened = open_fd(|| unsafe { libc_next::socket(domain, kind, protocol) });
        if opened >= 0 {
            protocols::opened(opened, domain, kind, protocol);
        }
        opened
    }
}

// The last arguments of `open`, `openat` and `mq_open` are passed, whether the caller passed them or not.
export_opening! { open_fd:
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn creat(path: *const c_char, mode: mode_t) -> c_int;
    fn eventfd(count: c_uint, flags: c_int) -> c_int;
    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn getpt() -> c_int;
    fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn fanotify_init(flags: c_uint, event_flags: c_uint) -> c_int;
}

export_opening! { with_free_fd:
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    fn pipe(fds: *mut c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn openpty(
        near: *mut c_int, far: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void
    ) -> c_int;
}

export_opening! { with_free_fd_for:
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn tmpfile() -> *mut FILE;
    fn tmpfile64() -> *mut FILE;
    fn opendir(path: *const c_char) -> *mut DIR;
}

export_template! {
    fn mkstemp(name: *mut c_char) -> c_int;
    fn mkstemp64(name: *mut c_char) -> c_int;
    fn mkostemp(name: *mut c_char, flags: c_int) -> c_int;
    fn mkostemp64(name: *mut c_char, flags: c_int) -> c_int;
    fn mkstemps(name: *mut c_char, suffix_len: c_int) -> c_int;
    fn mkstemps64(name: *mut c_char, suffix_len: c_int) -> c_int;
    fn mkostemps(name: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int;
    fn mkostemps64(name: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int;
}
