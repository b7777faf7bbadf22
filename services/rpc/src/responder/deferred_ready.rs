//! Notification of a server thread about deferred answers, which any thread may give, and of the clients that wait for
//! them.
//!
//! A thread that answers a call pushes the tag of the session, and wakes the server thread if it sleeps. A client
//! requests a wake-up if an earlier collect request found no answer, or when it is about to sleep. It is woken once,
//! with [`Imm::Answered`](crate::wire::Imm::Answered), and then sends a collect request. The request for a wake-up checks for answers that were
//! given before it; an answer that is given after it pushes its tag. The wake-up is therefore not lost in either
//! order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_drive::Parker;
use farcall_verbs::{Error, Result};

/// Tags of sessions with calls that were answered since the server thread last checked, and the object that it sleeps
/// on.
#[derive(Debug)]
pub(super) struct ReadyDeferredCalls {
    tags: Mutex<Vec<u32>>,
    has_any: AtomicBool,
    pub sleeper: Parker,
}

impl ReadyDeferredCalls {
    /// # Errors
    /// Returns an error if the system has no free descriptor.
    pub fn new() -> Result<Self> {
        let failed = |error| Error::os("make", "a descriptor that answers wake", error);
        let sleeper = Parker::new().map_err(failed)?;
        Ok(Self { tags: Mutex::default(), has_any: AtomicBool::new(false), sleeper })
    }

    fn tags(&self) -> MutexGuard<'_, Vec<u32>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a call of this session was answered.
    pub fn push(&self, session_tag: u32) {
        let mut tags = self.tags();
        if tags.last() != Some(&session_tag) {
            tags.push(session_tag);
        }
        // Inside the lock, so that a thread that takes the tags cannot clear the flag of a newer tag.
        self.has_any.store(true, Ordering::Release);
        drop(tags);
        self.sleeper.unpark_if_parked();
    }

    /// Returns whether there are any tags: one load.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Swaps the tags with an empty list, whose memory is used next.
    pub fn take(&self, empty: &mut Vec<u32>) {
        let mut tags = self.tags();
        std::mem::swap(&mut *tags, empty);
        self.has_any.store(false, Ordering::Release);
    }
}
