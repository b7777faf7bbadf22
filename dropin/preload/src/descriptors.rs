//! Descriptors of connections that are closed, duplicated or passed to another process.

use std::ffi::c_int;

use farcall_stats::PathReason;

use crate::fd_set::FdSet;
use crate::sock::{self, Sock};
use crate::tcp::Traffic;
use crate::{confined, doorbell, epoll, libc_next, own_fds, protocols, tcp, thread};

/// Descriptors of streams that the program opened (`fdopen`).
static STREAMS: FdSet = FdSet::new();
/// Descriptors that a list of file actions ever named as one that a child gets (posix_spawn).
static SPAWNED_WITH: FdSet = FdSet::new();
/// The C library's own streams have the descriptors up to this one.
const LAST_STANDARD_FD: c_int = 2;

/// Returns whether a stream of the C library has a descriptor: what it reads and writes does not pass this library.
pub fn has_stream(fd: c_int) -> bool {
    fd <= LAST_STANDARD_FD || STREAMS.contains(fd)
}

/// Called after a stream was opened with a descriptor.
pub fn after_stream_open(fd: c_int) {
    STREAMS.insert(fd);
    if let Some(sock) = sock::get(fd) {
        return_to_kernel(fd, &sock, PathReason::Stream);
    }
}

/// Called before a stream and its descriptor are closed.
pub fn before_stream_close(fd: c_int) {
    STREAMS.remove(fd);
    before_close(fd);
}

/// Returns whether a descriptor does not concern the library.
pub fn is_untracked(fd: c_int) -> bool {
    !epoll::is_known(fd) && sock::get(fd).is_none()
}

/// Called before a descriptor is closed, or its number is reused for another one.
pub fn before_close(fd: c_int) {
    protocols::forget(fd);
    // A child between vfork and exec closes its own.
    if is_untracked(fd) || confined::is_confined() || thread::is_vfork_child() {
        if confined::is_confined() {
            // Its doorbells stay open until the process ends.
            std::mem::forget(sock::take(fd));
        }
        return;
    }
    epoll::before_close(fd);
    if let Some(sock) = sock::take(fd)
        && sock.descriptors() == 0
        && !sock.is_inherited()
    {
        end(fd, &sock);
    }
}

/// Records the traffic of a connection by TCP, and whether there was a connection.
fn record_traffic(fd: c_int, sock: &Sock) -> Option<Traffic> {
    // A connection without addresses did not last, and costs no system call more.
    sock.addresses()?;
    let traffic = tcp::traffic(fd)?;
    if !traffic.was_established {
        sock.stay_on_tcp(PathReason::NotEstablished);
    }
    if let Some(stats) = sock.stats() {
        stats.tcp_sent_bytes.set(traffic.sent_bytes);
        stats.tcp_received_bytes.set(traffic.received_bytes);
    }
    Some(traffic)
}

/// Called when the process ends: records the traffic of connections that it leaves open.
pub extern "C" fn at_exit() {
    if !confined::is_confined() {
        sock::each(|fd, sock| {
            record_traffic(fd, sock);
        });
    }
}

/// Called before the last descriptor of a connection in this process is closed.
fn end(fd: c_int, sock: &Sock) {
    let traffic = record_traffic(fd, sock);
    sock.stay_on_tcp(PathReason::ShutDown);
    let Some(link) = sock.link() else { return };
    if traffic.is_some_and(|traffic| link.outgoing.was_bypassed(traffic.sent_bytes)) {
        link.announce_bypass();
    }
    if !sock.is_forked() {
        if link.incoming.snapshot().unread_bytes > 0 {
            // Like TCP: bytes that are not received reset the connection.
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (value, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
            // SAFETY: a linger of this function.
            unsafe { libc_next::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, len) };
        }
        link.announce_end();
    }
    sock.demote(PathReason::ShutDown);
}

/// Called after `connect` has dissolved the connection of its socket (AF_UNSPEC): like the kernel's end of it, its
/// rings end with a reset for the peer, and the next connection of the socket is a new one.
pub fn after_disconnect(fd: c_int) {
    let Some(sock) = sock::get(fd) else { return };
    sock.demote(PathReason::ShutDown);
    let mut fds = vec![fd];
    if sock.descriptors() > 1 {
        sock::each(|other, of_other| {
            if std::ptr::eq::<Sock>(&**of_other, &*sock) {
                fds.push(other);
            }
        });
    }
    for fd in fds {
        epoll::release(fd);
        sock::take(fd);
    }
}

/// Called after a descriptor was duplicated.
pub fn after_dup(old: c_int, new: c_int) {
    if thread::is_vfork_child() {
        // A child between vfork and exec prepares its descriptors for another program.
        if let Some(sock) = sock::get(old) {
            return_to_kernel(old, &sock, PathReason::Executed);
        }
        return;
    }
    if new != old
        && let Some(sock) = sock::get(old)
    {
        if has_stream(new) {
            return_to_kernel(old, &sock, PathReason::Stream);
        }
        sock.demote(PathReason::Duplicated);
        sock::put(new, &sock);
    }
    epoll::after_dup(old, new);
}

/// Called before the program takes a number that a descriptor of the library has. Returns whether the library released
/// it and no thread uses it any more.
pub fn release_number(fd: c_int) -> bool {
    if !own_fds::is_own(fd) || thread::is_vfork_child() {
        return false;
    }
    doorbell::before_release(fd);
    sock::each(|_, sock| {
        if sock.link().is_some_and(|link| link.doorbell.fd() == fd) {
            sock.demote(PathReason::NoResources);
        }
        if sock.rendezvous().is_some_and(|rendezvous| rendezvous.fd == fd) {
            sock.stay_on_tcp(PathReason::NoResources);
        }
    });
    own_fds::abandon(fd)
}

/// Called after the program opened a descriptor: the library releases its descriptors whose numbers the program may
/// need soon; their connections return to TCP.
pub fn release_near(fd: c_int) {
    while let Some(own_fd) = own_fds::lowest_near(fd).filter(|_| !thread::is_vfork_child()) {
        close_own(own_fd);
    }
}

/// Called when the kernel had no descriptor left for the program: releases one of the library's. Returns whether there
/// was one.
pub fn release_one() -> bool {
    let own_fd = own_fds::next_from(0).filter(|_| !thread::is_vfork_child());
    if let Some(own_fd) = own_fd {
        close_own(own_fd as c_int);
    }
    own_fd.is_some()
}

fn close_own(fd: c_int) {
    if release_number(fd) {
        // SAFETY: it was the library's, no thread uses it any more, and the program does not know of it.
        unsafe { libc_next::close(fd) };
    }
}

/// Returns a connection to TCP, because other processes can only use the kernel's socket. Bytes that were received but
/// not read are in the ring: the connection then ends, because these bytes would be missing.
pub fn return_to_kernel(fd: c_int, sock: &Sock, why: PathReason) {
    sock.demote(why);
    if sock.unread_bytes() > 0 {
        // SAFETY: no memory is involved.
        unsafe { libc_next::shutdown(fd, libc::SHUT_RDWR) };
    }
}

/// Calls for the connections that another program inherits.
fn each_inherited(mut with: impl FnMut(c_int, &Sock)) {
    sock::each(|fd, sock| {
        // SAFETY: no memory is involved.
        let flags = unsafe { libc_next::fcntl(fd, libc::F_GETFD, 0) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            with(fd, sock);
        }
    });
}

/// Called before another program is started in a new process.
pub fn before_spawn() {
    each_inherited(|_, sock| sock.demote(PathReason::Executed));
    sock::each(|fd, sock| {
        if SPAWNED_WITH.contains(fd) {
            return_to_kernel(fd, sock, PathReason::Executed);
        }
    });
}

/// Called when a list of file actions passes a descriptor to a child, which may be spawned later and more than once.
pub fn record_spawn_action(fd: c_int) {
    SPAWNED_WITH.insert(fd);
}

/// Called before a process with the same connections is created without fork handlers.
pub fn before_raw_fork() {
    sock::before_fork();
    sock::each(|_, sock| sock.demote(PathReason::Forked));
}

/// Called before another program replaces this one in the process.
pub fn before_exec() {
    each_inherited(|fd, sock| {
        if sock.is_inherited() || sock.is_forked() || thread::is_vfork_child() {
            // Other processes have it as well, and may read the remaining bytes.
            sock.demote(PathReason::Executed);
        } else {
            return_to_kernel(fd, sock, PathReason::Executed);
        }
    });
}
