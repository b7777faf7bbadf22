//! Admission control used in measurements: a window that records the bytes in flight, and that can be closed until a
//! burst is complete.

use farcall_io::{Admission, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State that is shared with code outside of the session.
#[derive(Default)]
pub(super) struct Seen {
    is_closed: AtomicBool,
    /// Sum of the bytes in flight after each post, and number of posts.
    sum_bytes: AtomicU64,
    posts: AtomicU64,
}

impl Seen {
    /// Holds back all requests that may be held back, or releases them.
    pub(super) fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Release);
    }

    /// Returns the sum of the bytes in flight after each post, and the number of posts.
    pub(super) fn in_flight(&self) -> (u64, u64) {
        (self.sum_bytes.load(Ordering::Relaxed), self.posts.load(Ordering::Relaxed))
    }
}

pub(super) struct Watched {
    window: Window,
    seen: Arc<Seen>,
    in_flight_bytes: u64,
}

impl Watched {
    pub(super) fn new(window_bytes: Option<u64>, seen: Arc<Seen>) -> Self {
        let window = window_bytes.map_or(Window::OPEN, |bytes| Window { bytes });
        Self { window, seen, in_flight_bytes: 0 }
    }
}

/// Adds to a counter that has a single writer: the thread that holds the session's combiner role.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Admission for Watched {
    fn admits(&mut self, in_flight_bytes: u64, bytes: u64) -> bool {
        !self.seen.is_closed.load(Ordering::Acquire) && self.window.admits(in_flight_bytes, bytes)
    }

    fn posted(&mut self, bytes: u64) {
        self.in_flight_bytes += bytes;
        add(&self.seen.sum_bytes, self.in_flight_bytes);
        add(&self.seen.posts, 1);
    }

    fn ended(&mut self, bytes: u64) {
        self.in_flight_bytes -= bytes;
    }
}
