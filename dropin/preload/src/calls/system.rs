//! System calls by number, and what tells of io_uring.

use std::ffi::{c_int, c_long, c_uint};
use std::ptr::with_exposed_provenance_mut as pointer;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use farcall_stats::Why;

use super::{connection, events, export, receive, send};
use crate::{real, sock};

/// The program uses io_uring: what it does there with a connection is not seen.
static USES_IO_URING: AtomicBool = AtomicBool::new(false);

/// Whether the program uses io_uring.
pub fn uses_io_uring() -> bool {
    USES_IO_URING.load(Relaxed)
}

fn begins_io_uring() {
    if !USES_IO_URING.swap(true, Relaxed) {
        sock::each(|_, sock| sock.demote(Why::IoUring));
    }
}

export! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let fd = a as c_int;
        // SAFETY: the arguments are those of the system call, which the functions of the same names have, too.
        unsafe {
            match number {
                libc::SYS_io_uring_setup => begins_io_uring(),
                libc::SYS_close => return connection::close(fd).into(),
                libc::SYS_close_range => return connection::close_range(a as c_uint, b as c_uint, c as c_int).into(),
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
                libc::SYS_epoll_pwait if e == 0 => {
                    return events::epoll_wait(fd, pointer(b), c as c_int, d as c_int).into();
                }
                libc::SYS_epoll_ctl => {
                    return events::epoll_ctl(fd, b as c_int, c as c_int, pointer(d)).into();
                }
                _ => {}
            }
            real::syscall(number, a, b, c, d, e, f)
        }
    }
}
