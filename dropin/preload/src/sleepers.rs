//! Threads that sleep in poll for one connection.
//!
//! One of them, the leader, polls the doorbell of the connection, and consumes what the peer has rung. Each other one,
//! a follower, polls an eventfd of its own thread. A leader that wakes up, for whatever reason, wakes all followers;
//! each of them checks the connection again, and one becomes the leader. So no follower misses what the leader
//! consumed, and a connection that one thread waits for has one descriptor.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_shm::Mutex;
use farcall_stats::PathReason;

use crate::door::{self, Waker};
use crate::epoll;
use crate::sock::Sock;

/// State of a connection about threads that sleep for it.
pub struct Sleeping {
    /// Whether a thread polls the doorbell.
    has_leader: AtomicBool,
    /// Number of entries of [`FOLLOWERS`].
    followers: AtomicU32,
}

/// The followers of all connections: a connection, by its address, and the descriptor that wakes the thread.
static FOLLOWERS: Mutex<Vec<(usize, RawFd)>> = Mutex::new(Vec::new());

thread_local! {
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// Returns the descriptor that wakes this thread; `None` if there is none left for the library.
fn own_waker() -> Option<RawFd> {
    let usable = |waker: &RefCell<Option<Waker>>| {
        // Borrowed: this is a signal handler, which interrupted the thread here.
        let mut waker = waker.try_borrow_mut().ok()?;
        if waker.as_ref().is_none_or(|waker| !waker.is_usable()) {
            *waker = Waker::new();
        }
        waker.as_ref().map(Waker::fd)
    };
    WAKER.try_with(usable).ok().flatten()
}

/// Locks what must be free in a forked child.
pub fn lock_for_fork() -> impl Sized {
    FOLLOWERS.lock()
}

/// Called in a forked child: its parent's threads sleep in another process.
pub fn enter_child() {
    FOLLOWERS.lock().clear();
}

impl Sleeping {
    /// Creates the state without sleeping threads.
    pub const fn new() -> Self {
        Self { has_leader: AtomicBool::new(false), followers: AtomicU32::new(0) }
    }

    /// Resets the state for another connection.
    pub fn reset(&self) {
        self.has_leader.store(false, Relaxed);
        self.followers.store(0, Relaxed);
    }

    /// Returns whether a thread polls the doorbell.
    pub fn has_leader(&self) -> bool {
        self.has_leader.load(SeqCst)
    }

    fn key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    fn follow(&self, fd: RawFd) {
        FOLLOWERS.lock().push((self.key(), fd));
        self.followers.fetch_add(1, SeqCst);
    }

    fn unfollow(&self, fd: RawFd) {
        let mut followers = FOLLOWERS.lock();
        if let Some(at) = followers.iter().position(|entry| *entry == (self.key(), fd)) {
            followers.swap_remove(at);
            self.followers.fetch_sub(1, SeqCst);
        }
    }

    /// Wakes the threads that do not poll the doorbell.
    pub fn wake_followers(&self) {
        if self.followers.load(SeqCst) > 0 {
            for (_, fd) in FOLLOWERS.lock().iter().filter(|(key, _)| *key == self.key()) {
                door::wake(*fd);
            }
        }
    }
}

/// A thread that sleeps for a connection.
pub struct Sleeper<'a> {
    sock: &'a Sock,
    /// Descriptor by which the program has the connection.
    fd: c_int,
    /// Descriptor that wakes this thread; `None`: it polls the doorbell.
    follows_by: Option<RawFd>,
}

impl<'a> Sleeper<'a> {
    /// Enters. Returns the descriptor to poll, too; `None` if there is none, and then the connection returns to TCP.
    pub fn enter(fd: c_int, sock: &'a Sock) -> Option<(Self, RawFd)> {
        let door = &sock.link()?.door;
        let sleeping = &sock.sleeping;
        let leader = Self { sock, fd, follows_by: None };
        if !sleeping.has_leader.swap(true, SeqCst) {
            return Some((leader, door.fd()));
        }
        std::mem::forget(leader);
        let Some(waker) = own_waker() else {
            sock.demote(PathReason::NoResources);
            return None;
        };
        sleeping.follow(waker);
        // A leader that leaves sees this thread among its followers, or this one sees that it has left.
        if !sleeping.has_leader.swap(true, SeqCst) {
            sleeping.unfollow(waker);
            return Some((Self { sock, fd, follows_by: None }, door.fd()));
        }
        Some((Self { sock, fd, follows_by: Some(waker) }, waker))
    }

    /// Called after a poll that found the descriptor readable.
    pub fn was_woken(&self) {
        if let Some(waker) = self.follows_by {
            door::silence(waker);
        } else if let Some(link) = self.sock.link() {
            link.door.silence();
            // An epoll object may not have been notified yet of what this thread has consumed.
            epoll::check_again(self.fd);
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        match self.follows_by {
            Some(waker) => self.sock.sleeping.unfollow(waker),
            None => {
                self.sock.sleeping.has_leader.store(false, SeqCst);
                self.sock.sleeping.wake_followers();
            }
        }
    }
}
