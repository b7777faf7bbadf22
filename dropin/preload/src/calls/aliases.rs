//! Other names by which the C library exports functions.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{
    FILE, aiocb, fd_set, mmsghdr, nfds_t, off_t, pollfd, sigevent, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

use super::{asynchronous, connection, control, events, export, mappings, process, receive, send, streams};
use crate::tcp::SIOCATMARK;

/// Exports a function of this library by another name.
macro_rules! export_alias {
    ($(fn $name:ident = $module:ident::$function:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        export! {
            $(
                fn $name($($arg: $ty),*) -> $ret {
                    // SAFETY: both names have one function in the C library, with one contract; the arguments are
                    // passed unchanged.
                    unsafe { $module::$function($($arg),*) }
                }
            )*
        }
    };
}

export_alias! {
    fn __read = receive::read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t;
    fn __write = send::write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    fn __recv = receive::recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __send = send::send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __sendmmsg = send::sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn __connect = connection::connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn __close = connection::close(fd: c_int) -> c_int;
    fn __dup2 = connection::dup2(fd: c_int, new: c_int) -> c_int;
    fn __fcntl = connection::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn __poll = events::poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    fn __select = events::select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn __libc_system = process::system(command: *const c_char) -> c_int;
    fn __backtrace_symbols_fd = streams::backtrace_symbols_fd(
        addresses: *const *mut c_void, count: c_int, fd: c_int
    ) -> ();
    fn _IO_fdopen = streams::fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn _IO_fclose = streams::fclose(stream: *mut FILE) -> c_int;
    fn _IO_popen = process::popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    // `off_t` is 64 bits long.
    fn aio_read64 = asynchronous::aio_read(block: *mut aiocb) -> c_int;
    fn aio_write64 = asynchronous::aio_write(block: *mut aiocb) -> c_int;
    fn lio_listio64 = asynchronous::lio_listio(
        mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent
    ) -> c_int;
    fn fcntl64 = connection::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn mmap64 = mappings::mmap(
        at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void;
    fn sendfile64 = send::sendfile(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t;
}

export! {
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
