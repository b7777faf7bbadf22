//! Functions that open descriptors: when the kernel has none left, the library returns its own.

use std::ffi::{c_char, c_int, c_uint};

use libc::{DIR, FILE, clockid_t, mode_t, sigset_t};

use super::export;
use crate::{descriptors, errno, real};

/// Opens a descriptor for the program; the library closes as many of its own as that needs.
pub(super) fn with_room(open: impl Fn() -> c_int) -> c_int {
    loop {
        let opened = open();
        if opened >= 0 || errno::get() != libc::EMFILE || !descriptors::make_way_for_one() {
            return opened;
        }
    }
}

/// As [`with_room`] for functions that return a pointer.
fn with_room_for<T>(open: impl Fn() -> *mut T) -> *mut T {
    loop {
        let opened = open();
        if !opened.is_null() || errno::get() != libc::EMFILE || !descriptors::make_way_for_one() {
            return opened;
        }
    }
}

// The third argument of `open` and its kin is passed on, whether the caller passed it or not.
export! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: no memory is involved.
        with_room(|| unsafe { real::socket(domain, kind, protocol) })
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        // SAFETY: the kernel writes two descriptors at `fds`, and fails with EFAULT if it cannot.
        with_room(|| unsafe { real::socketpair(domain, kind, protocol, fds) })
    }

    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::open(path, flags, mode) })
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::open64(path, flags, mode) })
    }

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::__open_2(path, flags) })
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::__open64_2(path, flags) })
    }

    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::openat(directory, path, flags, mode) })
    }

    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::openat64(directory, path, flags, mode) })
    }

    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::__openat_2(directory, path, flags) })
    }

    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::__openat64_2(directory, path, flags) })
    }

    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room(|| unsafe { real::creat(path, mode) })
    }

    fn pipe(fds: *mut c_int) -> c_int {
        // SAFETY: the kernel writes two descriptors at `fds`, and fails with EFAULT if it cannot.
        with_room(|| unsafe { real::pipe(fds) })
    }

    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
        // SAFETY: the kernel writes two descriptors at `fds`, and fails with EFAULT if it cannot.
        with_room(|| unsafe { real::pipe2(fds, flags) })
    }

    fn eventfd(count: c_uint, flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        with_room(|| unsafe { real::eventfd(count, flags) })
    }

    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        with_room(|| unsafe { real::timerfd_create(clock, flags) })
    }

    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
        // SAFETY: the kernel reads a set at `mask`, and fails with EFAULT if it cannot.
        with_room(|| unsafe { real::signalfd(fd, mask, flags) })
    }

    fn inotify_init() -> c_int {
        // SAFETY: no memory is involved.
        with_room(|| unsafe { real::inotify_init() })
    }

    fn inotify_init1(flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        with_room(|| unsafe { real::inotify_init1(flags) })
    }

    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        // SAFETY: `name` is a C string of the program's, which the kernel alone reads.
        with_room(|| unsafe { real::memfd_create(name, flags) })
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: both are C strings of the program's, which the C library alone reads.
        with_room_for(|| unsafe { real::fopen(path, mode) })
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: both are C strings of the program's, which the C library alone reads.
        with_room_for(|| unsafe { real::fopen64(path, mode) })
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_room_for(|| unsafe { real::opendir(path) })
    }
}
