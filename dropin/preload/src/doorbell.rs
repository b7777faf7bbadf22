//! Doorbells: descriptors that wake threads which sleep in the kernel.
//!
//! Each end of a connection has one descriptor, of a pair of Unix sockets: a byte that one end sends wakes threads of
//! the other. An eventfd of a thread, or of an epoll object, wakes threads of the same process.

use std::ffi::c_int;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};

use crate::fd_set::FdSet;
use crate::{own_fds, thread};

/// One end's doorbell of a connection.
pub struct Doorbell {
    fd: RawFd,
    /// `false` once the peer has closed its end, or this end waits for nothing any more.
    is_open: AtomicBool,
    /// Number of wake-ups of epoll objects.
    wakes: AtomicU32,
}

impl Doorbell {
    /// Returns the descriptors of both ends.
    pub fn pair() -> Option<(OwnedFd, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()
    }

    /// Makes a descriptor the doorbell of this end; `None` if the library can have no descriptor.
    pub fn new(fd: OwnedFd) -> Option<Self> {
        Some(Self { fd: own_fds::adopt(fd)?, is_open: AtomicBool::new(true), wakes: AtomicU32::new(0) })
    }

    /// Returns the descriptor, which is readable after the peer has notified this end.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Returns whether the peer may still notify this end, and the descriptor was not released.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Relaxed) && own_fds::is_own(self.fd)
    }

    /// Wakes threads of the peer that sleep. If the socket is full, it can be read already.
    pub fn notify(&self) {
        own_fds::while_own(self.fd, || {
            let _ = send(own_fds::borrow(self.fd), &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        });
    }

    /// Wakes all sleeping threads of this process, and every thread that polls the doorbell later: there is nothing to
    /// wait for any more.
    pub fn close(&self) {
        self.is_open.store(false, Relaxed);
        own_fds::while_own(self.fd, || {
            let _ = shutdown(own_fds::borrow(self.fd), Shutdown::Read);
        });
    }

    /// Counts a wake-up of an epoll object. Returns their number since the ends were paired.
    pub fn count_wake(&self) -> u32 {
        self.wakes.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Consumes the notifications of the peer.
    pub fn drain(&self) {
        let mut bytes = [0_u8; 64];
        own_fds::while_own(self.fd, || {
            match recv(own_fds::borrow(self.fd), &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.is_open.store(false, Relaxed),
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(_) => self.is_open.store(false, Relaxed),
            }
        });
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        own_fds::close(self.fd);
    }
}

/// Descriptors of wakers.
static WAKERS: FdSet = FdSet::new();

/// Wakes a thread of this process, or one of those that wait for an epoll object.
pub struct Waker {
    fd: RawFd,
    /// A forked child shares the descriptor with its parent, and must not use it.
    generation: u32,
}

impl Waker {
    /// Returns a waker; `None` if the library can have no descriptor.
    pub fn new() -> Option<Self> {
        let fd = own_fds::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?)?;
        WAKERS.insert(fd);
        Some(Self { fd, generation: thread::generation() })
    }

    /// Returns a descriptor that is readable after a wake-up.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Returns whether it belongs to this process, and its number was not released.
    pub fn is_usable(&self) -> bool {
        self.generation == thread::generation() && own_fds::is_own(self.fd)
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        WAKERS.remove(self.fd);
        own_fds::close(self.fd);
    }
}

/// Wakes by the descriptor of a waker. Returns whether it did; it does not if the number was released.
pub fn wake(fd: RawFd) -> bool {
    let mut is_awake = false;
    own_fds::while_own(fd, || is_awake = io::write(own_fds::borrow(fd), &1_u64.to_ne_bytes()).is_ok());
    is_awake
}

/// Consumes the wake-ups of a waker.
pub fn drain(fd: RawFd) {
    own_fds::while_own(fd, || {
        let _ = io::read(own_fds::borrow(fd), &mut [0_u8; 8]);
    });
}

/// Called before a descriptor of the library's becomes the program's: a thread that sleeps on it chooses another one.
pub fn before_release(fd: c_int) {
    if WAKERS.remove(fd) {
        wake(fd);
    }
}
