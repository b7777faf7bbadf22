//! Functions that make, end and duplicate connections.

use std::ffi::{c_int, c_uint};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use farcall_stats::PathReason;
use libc::{sockaddr, socklen_t};

use super::export;
use super::opening::{open_fd, with_free_fd};
use crate::fd_set::FDS;
use crate::{descriptors, errno, fork, libc_next, own_fds, rendezvous, sock};

/// Parses an address that the program passed.
///
/// # Safety
/// `address` is null, or `len` bytes at it can be read.
unsafe fn parse(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: `address` can be read and has at least the length of the structure that its family names, as checked
    // above.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(address.sin_port)))
            }
            libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(address.sin6_port)))
            }
            _ => None,
        }
    }
}

/// Called before the library records the connection `fd`, which the socket `source` has made. Returns whether it does.
fn begin(fd: c_int, source: c_int) -> bool {
    let is_candidate = rendezvous::is_candidate(source);
    if is_candidate {
        descriptors::release_near(fd);
        fork::prepare();
    }
    is_candidate
}

export! {
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the kernel reads `len` bytes at `address`, both as the program passed them, and fails with EFAULT if
        // it cannot.
        let done = unsafe { libc_next::connect(fd, address, len) };
        let error = errno::get();
        if done == 0 || error == libc::EINPROGRESS {
            // SAFETY: the kernel has read the `len` bytes at `address` in this call, and the program leaves them alone
            // until it returns: connect(2) takes them as constant.
            let asked = unsafe { parse(address, len) };
            // SAFETY: the kernel has accepted the address, so that the family, its first two bytes, can be read at
            // `address`.
            if done == 0 && unsafe { c_int::from((*address).sa_family) } == libc::AF_UNSPEC {
                descriptors::after_disconnect(fd);
            }
            if let Some(asked) = asked
                && sock::get(fd).is_none()
                && begin(fd, fd)
            {
                rendezvous::connected(fd, asked);
            }
            errno::set(error);
        }
        done
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the kernel writes the peer's address to at most `*len` bytes at `address`; both pointers are the
        // program's, unchanged, and one that is not there makes the kernel fail with EFAULT.
        let accepted = with_free_fd(|| unsafe { libc_next::accept(fd, address, len) });
        if accepted >= 0 && begin(accepted, fd) {
            rendezvous::accepted(accepted);
        }
        accepted
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the kernel writes the peer's address to at most `*len` bytes at `address`; both pointers are the
        // program's, unchanged, and one that is not there makes the kernel fail with EFAULT.
        let accepted = with_free_fd(|| unsafe { libc_next::accept4(fd, address, len, flags) });
        if accepted >= 0 && begin(accepted, fd) {
            rendezvous::accepted(accepted);
        }
        accepted
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if let Some(sock) = sock::get(fd) {
            if how != libc::SHUT_RD
                && let Some(link) = sock.link()
            {
                link.announce_end();
            }
            sock.demote(PathReason::ShutDown);
        }
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        unsafe { libc_next::shutdown(fd, how) }
    }

    fn close(fd: c_int) -> c_int {
        if own_fds::is_own(fd) {
            errno::set(libc::EBADF);
            return -1;
        }
        descriptors::before_close(fd);
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks. `fd` is not one of the
        // library's.
        unsafe { libc_next::close(fd) }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let closes = first <= last && flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0;
        if closes {
            (first..=last.min(FDS as c_uint)).for_each(|fd| descriptors::before_close(fd as c_int));
        }
        if !closes || !own_fds::exist() {
            // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
            return unsafe { libc_next::close_range(first, last, flags) };
        }
        // Around the library's own, which close when another program starts.
        let mut from = first;
        while let Some(ours) = own_fds::next_from(from).filter(|ours| *ours <= last) {
            if ours > from {
                // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks. None of the range
                // is the library's.
                unsafe { libc_next::close_range(from, ours - 1, flags) };
            }
            from = ours + 1;
        }
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks. None of the range is the
        // library's.
        if from <= last { unsafe { libc_next::close_range(from, last, flags) } } else { 0 }
    }

    fn closefrom(first: c_int) -> () {
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
    }

    fn dup(fd: c_int) -> c_int {
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        let new = open_fd(|| unsafe { libc_next::dup(fd) });
        if new >= 0 {
            descriptors::after_dup(fd, new);
        }
        new
    }

    fn dup2(fd: c_int, new: c_int) -> c_int {
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        if fd != new && unsafe { libc_next::fcntl(fd, libc::F_GETFD, 0) } >= 0 {
            descriptors::release_number(new);
            descriptors::before_close(new);
        }
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        let new = unsafe { libc_next::dup2(fd, new) };
        if new >= 0 && new != fd {
            descriptors::after_dup(fd, new);
        }
        new
    }

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        if fd != new && flags & !libc::O_CLOEXEC == 0 && unsafe { libc_next::fcntl(fd, libc::F_GETFD, 0) } >= 0 {
            descriptors::release_number(new);
            descriptors::before_close(new);
        }
        // SAFETY: no memory is involved: all arguments are numbers, which the kernel checks.
        let new = unsafe { libc_next::dup3(fd, new, flags) };
        if new >= 0 {
            descriptors::after_dup(fd, new);
        }
        new
    }

    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: `argument` is a number, or a pointer to the structure that `command` names; the kernel alone reads or
        // writes it, and fails with EFAULT if it cannot.
        let done = with_free_fd(|| unsafe { libc_next::fcntl(fd, command, argument) });
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if done >= 0 => descriptors::after_dup(fd, done),
            libc::F_SETFL => {
                if let Some(sock) = sock::get(fd) {
                    sock.set_known_nonblocking(None);
                    if argument as c_int & libc::O_ASYNC != 0 {
                        sock.demote(PathReason::KernelFeature);
                    }
                }
            }
            _ => {}
        }
        done
    }
}
