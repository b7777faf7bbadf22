//! System calls by number: those that concern connections go to the functions of the same names.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr::with_exposed_provenance_mut as pointer;

use libc::{sigset_t, sockaddr, timespec};

use super::{asynchronous, confinement, connection, control, events, export, process, receive, send};
use crate::{clock, descriptors, direct_calls, errno, libc_next, pointers};

/// Masks of signals that the kernel takes have this length.
const MASK_BYTES: usize = 8;

/// Executes the kernel's pselect6, whose last argument is a pair: the address of a mask, and its length.
///
/// # Safety
/// As the manual page of `select` says of the system call.
unsafe fn pselect6(arguments: [usize; 6]) -> c_int {
    let [count, read, write, other, time, pair] = arguments;
    let [mask, len_bytes] = match events::value_at(pointer::<[usize; 2]>(pair)) {
        Ok(pair) => pair.unwrap_or_default(),
        Err(number) => return errno::fail(number),
    };
    if mask != 0 && len_bytes != MASK_BYTES {
        return errno::fail(libc::EINVAL);
    }
    let (count, time) = (count as c_int, pointer(time));
    // SAFETY: the caller's arguments; the C library's function takes the mask itself.
    with_time_left(time, || unsafe {
        events::pselect(count, pointer(read), pointer(write), pointer(other), time, pointer(mask))
    })
}

/// Executes a wait, and stores the time that is left, as the system call does. The C library's functions do not.
fn with_time_left(time: *mut timespec, wait: impl FnOnce() -> c_int) -> c_int {
    let requested = events::value_at(time).ok().flatten();
    let until_ns = events::after(requested).ok().flatten();
    let result = wait();
    let error = errno::get();
    if let Some(until_ns) = until_ns
        && pointers::can_write(time, 1)
    {
        let left_ns = until_ns.saturating_sub(clock::now_ns());
        let (tv_sec, tv_nsec) = ((left_ns / 1_000_000_000) as _, (left_ns % 1_000_000_000) as _);
        // SAFETY: `can_write` has found the time, which no other thread uses until the call returns: the system call
        // writes it, too.
        unsafe { time.write_unaligned(timespec { tv_sec, tv_nsec }) };
    }
    errno::set(error);
    result
}

export! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let fd = a as c_int;
        // SAFETY: the arguments are those of the system call, which the functions of the same names have, too.
        unsafe {
            match number {
                libc::SYS_munmap
                | libc::SYS_mprotect
                | libc::SYS_pkey_mprotect
                | libc::SYS_mremap
                | libc::SYS_mmap
                | libc::SYS_shmdt
                | libc::SYS_brk => pointers::before_change(),
                // The kernel uses connections for the program.
                libc::SYS_io_uring_setup => direct_calls::record_found("io_uring (syscall)"),
                libc::SYS_io_submit => {
                    asynchronous::before_submit(b as c_long, pointer::<*const u8>(c));
                }
                libc::SYS_clone if process::copies_descriptors(a as c_int) => {
                    descriptors::before_raw_fork();
                }
                libc::SYS_clone3 => descriptors::before_raw_fork(),
                libc::SYS_seccomp if confinement::restricts(a) => confinement::enter(),
                libc::SYS_prctl => confinement::before_prctl(a as c_long),
                libc::SYS_execve => return process::execve(pointer::<c_char>(a), pointer(b), pointer(c)).into(),
                libc::SYS_execveat => {
                    return process::execveat(fd, pointer::<c_char>(b), pointer(c), pointer(d), e as c_int).into();
                }
                libc::SYS_close => return connection::close(fd).into(),
                libc::SYS_close_range => return connection::close_range(a as c_uint, b as c_uint, c as c_int).into(),
                libc::SYS_connect => return connection::connect(fd, pointer::<sockaddr>(b), c as u32).into(),
                libc::SYS_accept => return connection::accept(fd, pointer(b), pointer(c)).into(),
                libc::SYS_accept4 => return connection::accept4(fd, pointer(b), pointer(c), d as c_int).into(),
                libc::SYS_shutdown => return connection::shutdown(fd, b as c_int).into(),
                libc::SYS_fcntl => return connection::fcntl(fd, b as c_int, c).into(),
                libc::SYS_ioctl => return control::ioctl(fd, b as c_ulong, c).into(),
                libc::SYS_setsockopt => {
                    return control::setsockopt(fd, b as c_int, c as c_int, pointer::<c_void>(d), e as u32).into();
                }
                libc::SYS_getsockopt => {
                    return control::getsockopt(fd, b as c_int, c as c_int, pointer(d), pointer(e)).into();
                }
                libc::SYS_dup => return connection::dup(fd).into(),
                libc::SYS_dup3 => return connection::dup3(fd, b as c_int, c as c_int).into(),
                libc::SYS_read => return receive::read(fd, pointer(b), c) as c_long,
                libc::SYS_write => return send::write(fd, pointer::<std::ffi::c_void>(b), c) as c_long,
                libc::SYS_readv => return receive::readv(fd, pointer::<libc::iovec>(b), c as c_int) as c_long,
                libc::SYS_writev => return send::writev(fd, pointer::<libc::iovec>(b), c as c_int) as c_long,
                libc::SYS_recvfrom => {
                    return receive::recvfrom(fd, pointer(b), c, d as c_int, pointer(e), pointer(f)) as c_long;
                }
                libc::SYS_sendto => {
                    let (from, address) = (pointer::<std::ffi::c_void>(b), pointer::<libc::sockaddr>(e));
                    return send::sendto(fd, from, c, d as c_int, address, f as u32) as c_long;
                }
                libc::SYS_recvmsg => return receive::recvmsg(fd, pointer(b), c as c_int) as c_long,
                libc::SYS_sendmsg => return send::sendmsg(fd, pointer::<libc::msghdr>(b), c as c_int) as c_long,
                libc::SYS_recvmmsg => {
                    return receive::recvmmsg(fd, pointer(b), c as c_uint, d as c_int, pointer(e)).into();
                }
                libc::SYS_sendmmsg => return send::sendmmsg(fd, pointer(b), c as c_uint, d as c_int).into(),
                libc::SYS_sendfile => return send::sendfile(fd, b as c_int, pointer(c), d) as c_long,
                libc::SYS_splice => {
                    return send::splice(fd, pointer(b), c as c_int, pointer(d), e, f as c_uint) as c_long;
                }
                // The offset is in two halves, of which the first has all bits here.
                libc::SYS_preadv2 => {
                    let into = pointer::<libc::iovec>(b);
                    return receive::preadv2(fd, into, c as c_int, d as i64, f as c_int) as c_long;
                }
                libc::SYS_pwritev2 => {
                    let from = pointer::<libc::iovec>(b);
                    return send::pwritev2(fd, from, c as c_int, d as i64, f as c_int) as c_long;
                }
                libc::SYS_epoll_create1 => return events::epoll_create1(fd).into(),
                libc::SYS_epoll_pwait if e == 0 || f == MASK_BYTES => {
                    let mask = pointer::<sigset_t>(e);
                    return events::epoll_pwait(fd, pointer(b), c as c_int, d as c_int, mask).into();
                }
                libc::SYS_epoll_pwait2 if e == 0 || f == MASK_BYTES => {
                    let (time, mask) = (pointer::<timespec>(d), pointer::<sigset_t>(e));
                    return events::epoll_pwait2(fd, pointer(b), c as c_int, time, mask).into();
                }
                libc::SYS_ppoll if d == 0 || e == MASK_BYTES => {
                    let (time, mask) = (pointer(c), pointer::<sigset_t>(d));
                    return with_time_left(time, || events::ppoll(pointer(a), b as libc::nfds_t, time, mask)).into();
                }
                libc::SYS_pselect6 => return pselect6([a, b, c, d, e, f]).into(),
                libc::SYS_epoll_ctl => {
                    return events::epoll_ctl(fd, b as c_int, c as c_int, pointer(d)).into();
                }
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_create => return events::epoll_create(fd).into(),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_wait => return events::epoll_wait(fd, pointer(b), c as c_int, d as c_int).into(),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_poll => return events::poll(pointer(a), b as libc::nfds_t, c as c_int).into(),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_select => {
                    return events::select(fd, pointer(b), pointer(c), pointer(d), pointer(e)).into();
                }
                #[cfg(target_arch = "x86_64")]
                libc::SYS_dup2 => return connection::dup2(fd, b as c_int).into(),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_fork | libc::SYS_vfork => descriptors::before_raw_fork(),
                _ => {}
            }
            loop {
                let done = libc_next::syscall(number, a, b, c, d, e, f);
                // Calls that open a descriptor do nothing else then.
                if done != -1 || errno::get() != libc::EMFILE || !descriptors::release_one() {
                    return done;
                }
            }
        }
    }
}
