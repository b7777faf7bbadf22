//! Sockets by descriptor.
//!
//! A [`Sock`] is never freed but reused. So the one of a descriptor is found without a lock: a reference is counted
//! first, then the entry is read again.

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use farcall_shm::Mutex;
use farcall_stats::PathReason;

use super::{Sock, Stage};
use crate::fd_set::FDS;
use crate::thread;

static TABLE: [AtomicPtr<Sock>; FDS] = [const { AtomicPtr::new(ptr::null_mut()) }; FDS];

static ALL: Mutex<Vec<&'static Sock>> = Mutex::new(Vec::new());

static FREE: Mutex<Vec<&'static Sock>> = Mutex::new(Vec::new());

/// A reference to a socket.
pub struct SockRef(&'static Sock);

impl SockRef {
    /// Releases this reference and `more` others, whose scopes a jump of the program leaves.
    ///
    /// # Safety
    /// None of them is used or dropped afterwards.
    pub unsafe fn release_left(&self, more: u32) {
        self.0.refs.fetch_sub(more, AcqRel);
        drop(Self(self.0));
    }
}

impl Deref for SockRef {
    type Target = Sock;

    fn deref(&self) -> &Sock {
        self.0
    }
}

impl Clone for SockRef {
    fn clone(&self) -> Self {
        self.0.refs.fetch_add(1, Relaxed);
        Self(self.0)
    }
}

impl Drop for SockRef {
    fn drop(&mut self) {
        if self.0.refs.fetch_sub(1, AcqRel) == 1 && self.0.is_owned.swap(false, AcqRel) {
            self.0.end();
            FREE.lock().push(self.0);
        }
    }
}

/// Returns the socket of a descriptor.
#[inline]
pub fn get(fd: c_int) -> Option<SockRef> {
    let entry = TABLE.get(fd as usize)?;
    loop {
        let found = entry.load(Acquire);
        if found.is_null() {
            return None;
        }
        // SAFETY: sockets are never freed.
        let sock: &'static Sock = unsafe { &*found };
        sock.refs.fetch_add(1, AcqRel);
        let sock = SockRef(sock);
        if entry.load(Acquire) == found {
            return Some(sock);
        }
    }
}

/// Stores the socket of a descriptor.
pub fn put(fd: c_int, sock: &SockRef) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    sock.fds.fetch_add(1, AcqRel);
    let reference = sock.clone();
    drop(take(fd));
    entry.store(ptr::from_ref(reference.0).cast_mut(), Release);
    std::mem::forget(reference);
}

/// Removes the socket of a descriptor.
pub fn take(fd: c_int) -> Option<SockRef> {
    let found = TABLE.get(fd as usize)?.swap(ptr::null_mut(), AcqRel);
    // SAFETY: never freed; the table's use becomes the caller's.
    let sock = (!found.is_null()).then(|| SockRef(unsafe { &*found }))?;
    sock.fds.fetch_sub(1, AcqRel);
    Some(sock)
}

/// Calls `with` for each descriptor of this process that the library knows as a socket.
pub fn each(mut with: impl FnMut(c_int, &SockRef)) {
    for fd in 0..FDS as c_int {
        if !TABLE[fd as usize].load(Relaxed).is_null()
            && let Some(sock) = get(fd)
        {
            with(fd, &sock);
        }
    }
}

/// Returns a socket for a new connection, whose ends try to pair after `due_uses` transfers.
pub fn new(stage: Stage, due_uses: u32) -> SockRef {
    let reused = FREE.lock().pop();
    let sock = reused.unwrap_or_else(|| {
        let sock: &'static Sock = Box::leak(Box::new(Sock::empty()));
        ALL.lock().push(sock);
        sock
    });
    sock.refs.fetch_add(1, AcqRel);
    sock.usage.begin(due_uses);
    sock.generation.store(thread::generation(), Relaxed);
    sock.stage.store(stage as u8, Release);
    sock.is_owned.store(true, Release);
    SockRef(sock)
}

/// Locks that must be free in a forked child.
pub fn lock_for_fork() -> impl Sized {
    (ALL.lock(), FREE.lock())
}

/// Before a fork: unpaired connections stay on TCP, because two processes will use them; paired ones are recorded as
/// shared.
pub fn before_fork() {
    let all = ALL.lock();
    for sock in all.iter().filter(|sock| sock.is_owned.load(Acquire)) {
        sock.is_forked.store(true, SeqCst);
        if sock.stage() != Stage::Paired {
            sock.stay_on_tcp(PathReason::Forked);
        }
    }
}
