//! Threads that sleep in poll for one connection.
//!
//! One of them, the leader, polls the doorbell of the connection, and consumes the peer's notifications. Each other
//! one, a follower, polls an eventfd of its own thread. A leader that wakes up, for whatever reason, wakes all
//! followers; each of them checks the connection again, and one becomes the leader. So no follower misses what the
//! leader consumed, and a connection that one thread waits for has one descriptor.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use farcall_shm::Mutex;

use crate::doorbell::{self, Waker};

/// Threads that sleep for one connection.
pub struct Waiters {
    /// `true` if a thread polls the doorbell.
    has_leader: AtomicBool,
    /// Number of entries of [`FOLLOWERS`].
    followers: AtomicU32,
    /// Number of threads for which the peer rings the doorbell.
    count: AtomicU32,
}

/// The followers of all connections: a connection, by its address, and the descriptor that wakes the thread.
static FOLLOWERS: Mutex<Vec<(usize, RawFd)>> = Mutex::new(Vec::new());

thread_local! {
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// Returns the descriptor that wakes this thread; `None` if there is none left for the library.
pub fn own_waker() -> Option<RawFd> {
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

impl Waiters {
    /// Creates the state without sleeping threads.
    pub const fn new() -> Self {
        Self { has_leader: AtomicBool::new(false), followers: AtomicU32::new(0), count: AtomicU32::new(0) }
    }

    /// Resets the state for another connection.
    pub fn reset(&self) {
        self.has_leader.store(false, Relaxed);
        self.followers.store(0, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// Returns the number of threads for which the peer rings the doorbell.
    pub fn count(&self) -> u32 {
        self.count.load(SeqCst)
    }

    /// Adds a thread for which the peer rings the doorbell.
    pub fn add(&self) {
        self.count.fetch_add(1, SeqCst);
    }

    /// Removes such a thread. Returns the number of the others.
    pub fn remove(&self) -> u32 {
        self.count.fetch_sub(1, SeqCst) - 1
    }

    /// Makes this thread the leader. Returns whether there was none.
    pub fn lead(&self) -> bool {
        !self.has_leader.swap(true, SeqCst)
    }

    /// Called when the leader has woken up: one of the followers becomes the leader.
    pub fn end_lead(&self) {
        self.has_leader.store(false, SeqCst);
        self.wake_followers();
    }

    /// Returns whether a thread polls the doorbell.
    pub fn has_leader(&self) -> bool {
        self.has_leader.load(SeqCst)
    }

    fn key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Adds a thread that a descriptor wakes.
    pub fn follow(&self, fd: RawFd) {
        FOLLOWERS.lock().push((self.key(), fd));
        self.followers.fetch_add(1, SeqCst);
    }

    /// Removes it.
    pub fn unfollow(&self, fd: RawFd) {
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
                doorbell::wake(*fd);
            }
        }
    }
}
