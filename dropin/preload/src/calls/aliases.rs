//! Other names by which the C library exports functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{FILE, fd_set, mmsghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

use super::{connection, control, events, export, process, receive, send, streams};
use crate::tcp::SIOCATMARK;

export! {
    fn __read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { receive::read(fd, into, len) }
    }

    fn __write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { send::write(fd, from, len) }
    }

    fn __recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { receive::recv(fd, into, len, flags) }
    }

    fn __send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { send::send(fd, from, len, flags) }
    }

    fn __sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { send::sendmmsg(fd, list, count, flags) }
    }

    fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { connection::connect(fd, address, len) }
    }

    fn __close(fd: c_int) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { connection::close(fd) }
    }

    fn __dup2(fd: c_int, new: c_int) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { connection::dup2(fd, new) }
    }

    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { connection::fcntl(fd, command, argument) }
    }

    fn __poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { events::poll(fds, count, timeout_ms) }
    }

    fn __select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { events::select(count, read, write, other, timeout) }
    }

    fn __libc_system(command: *const c_char) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { process::system(command) }
    }

    fn __backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> () {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { streams::backtrace_symbols_fd(addresses, count, fd) }
    }

    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { streams::fdopen(fd, mode) }
    }

    fn _IO_fclose(stream: *mut FILE) -> c_int {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { streams::fclose(stream) }
    }

    fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: another name of the same function of the C library, with the same contract and the same arguments.
        unsafe { process::popen(command, mode) }
    }

    // The C library's own write and read without this library, whatever the descriptor is.
    fn eventfd_write(fd: c_int, value: u64) -> c_int {
        // SAFETY: a number of this function.
        let done = unsafe { send::write(fd, (&raw const value).cast(), size_of::<u64>()) };
        if done == size_of::<u64>() as ssize_t { 0 } else { -1 }
    }

    fn eventfd_read(fd: c_int, value: *mut u64) -> c_int {
        // SAFETY: the caller's number, which `eventfd_read` fills.
        let done = unsafe { receive::read(fd, value.cast(), size_of::<u64>()) };
        if done == size_of::<u64>() as ssize_t { 0 } else { -1 }
    }

    // The C library's function queries the kernel.
    fn sockatmark(fd: c_int) -> c_int {
        let mut is_at_mark: c_int = 0;
        // SAFETY: an int of this function, which the request fills.
        let asked = unsafe { control::ioctl(fd, SIOCATMARK, (&raw mut is_at_mark).expose_provenance()) };
        if asked < 0 { asked } else { is_at_mark }
    }
}
