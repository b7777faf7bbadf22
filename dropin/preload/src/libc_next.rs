//! The C library's functions, of which this library replaces most. The loader finds each once (RTLD_NEXT).
//!
//! Nothing here allocates or needs that the library's constructors have run: programs call `close` in constructors of
//! their own that run before those of the library.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, aiocb, clockid_t, epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t,
    pollfd, sigevent, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use crate::errno;

/// A function of the C library.
struct Next {
    /// With a zero at its end.
    name: &'static str,
    found: AtomicPtr<c_void>,
}

impl Next {
    #[inline]
    fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a C string, as the macro makes it.
        let found = unsafe { symbol(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        // Every thread stores the same address.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Type of `dlsym`.
type FindSymbol = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the loader's `dlsym`, whose name this library exports as well.
pub fn find_symbol() -> Option<FindSymbol> {
    /// Since which version of the C library it is there, newest first.
    const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Relaxed);
    for version in VERSIONS {
        if found.is_null() {
            // SAFETY: C strings.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        }
    }
    FOUND.store(found, Ordering::Relaxed);
    // SAFETY: null, which is `None`, or the function of that name, which has this type.
    unsafe { std::mem::transmute::<*mut c_void, Option<FindSymbol>>(found) }
}

/// Returns the address that `dlsym` returns to this library.
///
/// # Safety
/// `name` is a C string.
pub unsafe fn symbol(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: this function's contract.
    find_symbol().map_or(ptr::null_mut(), |find| unsafe { find(handle, name) })
}

/// Result of a function that the C library does not have.
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for c_long {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl Failed for usize {
    const FAILED: Self = libc::SIG_ERR;
}

impl Failed for () {
    const FAILED: Self = ();
}

impl<T> Failed for *mut T {
    const FAILED: Self = ptr::null_mut();
}

macro_rules! real {
    ($($(#[$attribute:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        $(
            /// The C library's; -1 and `ENOSYS` if it has none.
            ///
            /// # Safety
            /// As its manual page says.
            $(#[$attribute])*
            #[inline]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                static NEXT: Next =
                    Next { name: concat!(stringify!($name), "\0"), found: AtomicPtr::new(ptr::null_mut()) };
                let address = NEXT.address();
                if address.is_null() {
                    errno::set(libc::ENOSYS);
                    return Failed::FAILED;
                }
                type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                // SAFETY: the C library's function of that name has this type, and its contract is that of this one:
                // the arguments go to it unchanged.
                unsafe { std::mem::transmute::<*mut c_void, Function>(address)($($arg),*) }
            }
        )*
    };
}

real! {
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn creat(path: *const c_char, mode: mode_t) -> c_int;
    fn pipe(fds: *mut c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn eventfd(count: c_uint, flags: c_int) -> c_int;
    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn opendir(path: *const c_char) -> *mut DIR;
    fn tmpfile() -> *mut FILE;
    fn tmpfile64() -> *mut FILE;
    fn mkstemp(name: *mut c_char) -> c_int;
    fn mkstemp64(name: *mut c_char) -> c_int;
    fn mkostemp(name: *mut c_char, flags: c_int) -> c_int;
    fn mkostemp64(name: *mut c_char, flags: c_int) -> c_int;
    fn mkstemps(name: *mut c_char, suffix_len: c_int) -> c_int;
    fn mkstemps64(name: *mut c_char, suffix_len: c_int) -> c_int;
    fn mkostemps(name: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int;
    fn mkostemps64(name: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int;
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn getpt() -> c_int;
    fn openpty(
        near: *mut c_int, far: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void
    ) -> c_int;
    fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn fanotify_init(flags: c_uint, event_flags: c_uint) -> c_int;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, new: c_int) -> c_int;
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t;
    fn readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t;
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, into: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t
    ) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, from: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t
    ) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t;
    fn splice(from: c_int, from_at: *mut i64, into: c_int, into_at: *mut i64, len: size_t, flags: c_uint) -> ssize_t;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t
    ) -> c_int;
    fn prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int;
    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, variables: *const *mut c_char
    ) -> c_int;
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, variables: *const *mut c_char
    ) -> c_int;
    fn execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn execveat(
        directory: c_int, path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char,
        flags: c_int
    ) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int;
    #[expect(non_snake_case, reason = "the C library's name")]
    fn _Fork() -> pid_t;
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlmopen(namespace: libc::Lmid_t, file: *const c_char, flags: c_int) -> *mut c_void;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn fclose(stream: *mut FILE) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> ();
    fn aio_read(block: *mut aiocb) -> c_int;
    fn aio_write(block: *mut aiocb) -> c_int;
    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    fn io_submit(context: usize, count: c_long, list: *const *const u8) -> c_int;
    fn preadv2(fd: c_int, into: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, from: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int;
    fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    fn munmap(at: *mut c_void, len: size_t) -> c_int;
    fn mprotect(at: *mut c_void, len: size_t, access: c_int) -> c_int;
    fn pkey_mprotect(at: *mut c_void, len: size_t, access: c_int, key: c_int) -> c_int;
    fn shmdt(at: *const c_void) -> c_int;
    fn brk(end: *mut c_void) -> c_int;
    fn sbrk(increment: isize) -> *mut c_void;
    fn syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long;
}
