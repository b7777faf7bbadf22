//! Functions of the C library that read or write a descriptor by calls of its own: streams, formatted output.

use std::ffi::{c_char, c_int, c_void};

use farcall_stats::PathReason;
use libc::FILE;

use super::export;
use crate::{descriptors, libc_next, sock};

/// Called before the C library writes to a descriptor without calling this library.
fn before_output(fd: c_int) {
    if let Some(sock) = sock::get(fd) {
        sock.demote(PathReason::KernelFeature);
    }
}

export! {
    // The C library's streams read and write without calling the functions of this library.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        // SAFETY: the caller's arguments, which `fdopen` checks.
        let stream = unsafe { libc_next::fdopen(fd, mode) };
        if !stream.is_null() {
            descriptors::after_stream_open(fd);
        }
        stream
    }

    fn fclose(stream: *mut FILE) -> c_int {
        // SAFETY: `fclose` requires an open stream.
        let fd = unsafe { libc::fileno(stream) };
        descriptors::before_stream_close(fd);
        // SAFETY: `fclose` requires an open stream.
        unsafe { libc_next::fclose(stream) }
    }

    // Closes the descriptor of the stream, and mostly opens another one with its number.
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        // SAFETY: `freopen` requires an open stream; the strings are the program's, which the C library alone reads.
        unsafe {
            descriptors::before_stream_close(libc::fileno(stream));
            libc_next::freopen(path, mode, stream)
        }
    }

    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        // SAFETY: `freopen` requires an open stream; the strings are the program's, which the C library alone reads.
        unsafe {
            descriptors::before_stream_close(libc::fileno(stream));
            libc_next::freopen64(path, mode, stream)
        }
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        before_output(fd);
        // SAFETY: `format` is a C string of the program's, and `arguments` what it describes; the C library alone uses
        // them.
        unsafe { libc_next::vdprintf(fd, format, arguments) }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        before_output(fd);
        // SAFETY: `format` is a C string of the program's, and `arguments` what it describes; the C library alone uses
        // them.
        unsafe { libc_next::__vdprintf_chk(fd, flag, format, arguments) }
    }

    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> () {
        before_output(fd);
        // SAFETY: the C library reads `count` addresses at `addresses`, as its manual page requires of the program.
        unsafe { libc_next::backtrace_symbols_fd(addresses, count, fd) }
    }
}

#[cfg(target_arch = "x86_64")]
mod formatted {
    use std::ffi::{c_int, c_void};

    use super::super::forward::{forward, next};

    extern "C" fn before_dprintf(fd: c_int) -> *mut c_void {
        super::before_output(fd);
        next(c"dprintf")
    }

    extern "C" fn before_dprintf_chk(fd: c_int) -> *mut c_void {
        super::before_output(fd);
        next(c"__dprintf_chk")
    }

    forward! {
        dprintf => before_dprintf;
        __dprintf_chk => before_dprintf_chk;
    }
}
