//! What becomes of a connection when its descriptor is closed, duplicated or handed on.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use farcall_stats::Why;

use crate::sock::{self, Sock};
use crate::{epoll, io, own_fds, real, thread};

/// Whether a descriptor is nothing to us.
pub fn is_foreign(fd: c_int) -> bool {
    !epoll::is_known(fd) && sock::get(fd).is_none()
}

/// Before a descriptor is closed, or another takes its number.
pub fn closing(fd: c_int) {
    // A child between vfork and exec closes its own.
    if is_foreign(fd) || thread::is_borrowed() {
        return;
    }
    epoll::closing(fd);
    if let Some(sock) = sock::take(fd)
        && sock.fds.load(Acquire) == 0
        && !sock.is_inherited()
    {
        end(fd, &sock);
    }
}

/// The last descriptor of this process.
fn end(fd: c_int, sock: &Sock) {
    sock.stay(Why::ShutDown);
    let Some(link) = sock.link() else { return };
    if !sock.is_forked.load(Relaxed) {
        if link.inn.look().unread_bytes > 0 {
            // As TCP does it: what is not received any more resets the connection.
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (value, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
            // SAFETY: a linger of ours.
            unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, len) };
        }
        link.words.store(link.own_end, 1, SeqCst);
    }
    sock.demote(Why::ShutDown);
}

/// After a descriptor was duplicated.
pub fn duplicated(old: c_int, new: c_int) {
    if thread::is_borrowed() {
        return;
    }
    if new != old
        && let Some(sock) = sock::get(old)
    {
        sock.demote(Why::Duplicated);
        sock::put(new, &sock);
    }
    epoll::duplicated(old, new);
}

/// Before a program of ours takes a number that the library has.
pub fn give_up(fd: c_int) {
    if !own_fds::is_ours(fd) || thread::is_borrowed() {
        return;
    }
    sock::each(|_, sock| {
        if sock.link().is_some_and(|link| link.door == fd || link.peer_door == fd) {
            sock.demote(Why::NoResources);
        }
    });
    own_fds::forget(fd);
}

/// The kernel's TCP is all that others will have of a connection. What was received and not read is not in it: then the
/// connection ends, rather than that bytes are missing.
pub fn hand_on(fd: c_int, sock: &Sock, why: Why) {
    sock.demote(why);
    if io::unread_bytes(sock) > 0 {
        // SAFETY: no memory is involved.
        unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
    }
}

/// Calls for the connections that another program inherits.
fn each_inherited(mut with: impl FnMut(c_int, &Sock)) {
    if !own_fds::are_there() {
        return;
    }
    sock::each(|fd, sock| {
        // SAFETY: no memory is involved.
        let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            with(fd, sock);
        }
    });
}

/// Before another program starts beside this one.
pub fn before_spawn() {
    each_inherited(|_, sock| sock.demote(Why::Executed));
}

/// Before another program takes this one's place.
pub fn before_exec() {
    each_inherited(|fd, sock| {
        if sock.is_inherited() || sock.is_forked.load(Relaxed) || thread::is_borrowed() {
            // Others have it, too, and may read what is left.
            sock.demote(Why::Executed);
        } else {
            hand_on(fd, sock, Why::Executed);
        }
    });
}
