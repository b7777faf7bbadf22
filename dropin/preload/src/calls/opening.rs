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

// The third argument of `open` and its kin is passed on, whether the caller passed it or not.
export! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: no memory is involved.
        let opened = open_fd(|| unsafe { libc_next::socket(domain, kind, protocol) });
        if opened >= 0 {
            protocols::opened(opened, domain, kind, protocol);
        }
        opened
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        // SAFETY: the kernel writes two descriptors at `fds`, and fails with EFAULT if it cannot.
        with_free_fd(|| unsafe { libc_next::socketpair(domain, kind, protocol, fds) })
    }

    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::open(path, flags, mode) })
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::open64(path, flags, mode) })
    }

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::__open_2(path, flags) })
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::__open64_2(path, flags) })
    }

    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::openat(directory, path, flags, mode) })
    }

    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::openat64(directory, path, flags, mode) })
    }

    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::__openat_2(directory, path, flags) })
    }

    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::__openat64_2(directory, path, flags) })
    }

    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::creat(path, mode) })
    }

    fn pipe(fds: *mut c_int) -> c_int {
        // SAFETY: the kernel writes two descriptors at `fds`, and fails with EFAULT if it cannot.
        with_free_fd(|| unsafe { libc_next::pipe(fds) })
    }

    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
        // SAFETY: the kernel writes two descriptors at `fds`, and fails with EFAULT if it cannot.
        with_free_fd(|| unsafe { libc_next::pipe2(fds, flags) })
    }

    fn eventfd(count: c_uint, flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::eventfd(count, flags) })
    }

    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::timerfd_create(clock, flags) })
    }

    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
        // SAFETY: the kernel reads a set at `mask`, and fails with EFAULT if it cannot.
        open_fd(|| unsafe { libc_next::signalfd(fd, mask, flags) })
    }

    fn inotify_init() -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::inotify_init() })
    }

    fn inotify_init1(flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::inotify_init1(flags) })
    }

    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        // SAFETY: `name` is a C string of the program's, which the kernel alone reads.
        open_fd(|| unsafe { libc_next::memfd_create(name, flags) })
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: both are C strings of the program's, which the C library alone reads.
        with_free_fd_for(|| unsafe { libc_next::fopen(path, mode) })
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: both are C strings of the program's, which the C library alone reads.
        with_free_fd_for(|| unsafe { libc_next::fopen64(path, mode) })
    }

    fn tmpfile() -> *mut FILE {
        // SAFETY: no memory is involved.
        with_free_fd_for(|| unsafe { libc_next::tmpfile() })
    }

    fn tmpfile64() -> *mut FILE {
        // SAFETY: no memory is involved.
        with_free_fd_for(|| unsafe { libc_next::tmpfile64() })
    }

    fn mkstemp(name: *mut c_char) -> c_int {
        // SAFETY: `name` is a C string that mkstemp(3) changes.
        unsafe { open_with_template(name, || libc_next::mkstemp(name)) }
    }

    fn mkstemp64(name: *mut c_char) -> c_int {
        // SAFETY: `name` is a C string that mkstemp(3) changes.
        unsafe { open_with_template(name, || libc_next::mkstemp64(name)) }
    }

    fn mkostemp(name: *mut c_char, flags: c_int) -> c_int {
        // SAFETY: `name` is a C string that mkostemp(3) changes.
        unsafe { open_with_template(name, || libc_next::mkostemp(name, flags)) }
    }

    fn mkostemp64(name: *mut c_char, flags: c_int) -> c_int {
        // SAFETY: `name` is a C string that mkostemp(3) changes.
        unsafe { open_with_template(name, || libc_next::mkostemp64(name, flags)) }
    }

    fn mkstemps(name: *mut c_char, suffix_len: c_int) -> c_int {
        // SAFETY: `name` is a C string that mkstemps(3) changes.
        unsafe { open_with_template(name, || libc_next::mkstemps(name, suffix_len)) }
    }

    fn mkstemps64(name: *mut c_char, suffix_len: c_int) -> c_int {
        // SAFETY: `name` is a C string that mkstemps(3) changes.
        unsafe { open_with_template(name, || libc_next::mkstemps64(name, suffix_len)) }
    }

    fn mkostemps(name: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int {
        // SAFETY: `name` is a C string that mkostemps(3) changes.
        unsafe { open_with_template(name, || libc_next::mkostemps(name, suffix_len, flags)) }
    }

    fn mkostemps64(name: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int {
        // SAFETY: `name` is a C string that mkostemps(3) changes.
        unsafe { open_with_template(name, || libc_next::mkostemps64(name, suffix_len, flags)) }
    }

    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: `name` is a C string of the program's, which the C library and the kernel alone read.
        open_fd(|| unsafe { libc_next::shm_open(name, flags, mode) })
    }

    // The third and the fourth argument are passed on as those of `open` are.
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void) -> c_int {
        // SAFETY: `name` is a C string of the program's, and `attributes` its attributes; the kernel alone reads them.
        open_fd(|| unsafe { libc_next::mq_open(name, flags, mode, attributes) })
    }

    fn posix_openpt(flags: c_int) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::posix_openpt(flags) })
    }

    fn getpt() -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::getpt() })
    }

    fn openpty(
        near: *mut c_int, far: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void,
    ) -> c_int {
        // SAFETY: the C library alone uses the pointers, as openpty(3) describes them.
        with_free_fd(|| unsafe { libc_next::openpty(near, far, name, settings, size) })
    }

    fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::pidfd_open(pid, flags) })
    }

    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::pidfd_getfd(pidfd, fd, flags) })
    }

    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
        // SAFETY: the kernel alone reads `handle`, and fails with EFAULT if it cannot.
        open_fd(|| unsafe { libc_next::open_by_handle_at(mount, handle, flags) })
    }

    fn fanotify_init(flags: c_uint, event_flags: c_uint) -> c_int {
        // SAFETY: no memory is involved.
        open_fd(|| unsafe { libc_next::fanotify_init(flags, event_flags) })
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        // SAFETY: `path` is a C string of the program's, which the C library and the kernel alone read.
        with_free_fd_for(|| unsafe { libc_next::opendir(path) })
    }
}
