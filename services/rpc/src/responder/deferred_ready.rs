//! Notification of a server thread about deferred answers, which any thread may give, and of the clients that wait for
//! them.
//!
//! A thread that answers a call pushes the tag of the session, and wakes the server thread if it sleeps. A client
//! requests a wake-up if an earlier collect request found no answer, or when it is about to sleep. It is woken once,
//! with [`Imm::Answered`], and then sends a collect request. The request for a wake-up checks for answers that were
//! given before it; an answer that is given after it pushes its tag. The wake-up is therefore not lost in either
//! order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_drive::Parker;
use farcall_verbs::{Clock, Error, Result};

use super::serve::Engine;
use super::{DedicatedQp, Handler, Responder, ServerConnection};
use crate::paths::{DatagramReply, ResponsePath};
use crate::wire::{Imm, Mode};

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
    fn take(&self, empty: &mut Vec<u32>) {
        let mut tags = self.tags();
        std::mem::swap(&mut *tags, empty);
        self.has_any.store(false, Ordering::Release);
    }
}

impl ServerConnection {
    /// Records that the client requests a wake-up for the next answer.
    pub(super) const fn enable_notify(&mut self) {
        self.notify_next = self.can_notify;
    }

    /// Marks a wake-up as due if the client has requested one and there is an answer.
    pub(super) fn check_answers(&mut self) {
        self.notify_due |= self.notify_next && self.session.has_answers();
        self.notify_next &= !self.notify_due;
    }
}

impl<H: Handler, C: Clock> Engine<H, C> {
    /// Wakes the client if a wake-up is due. Over UD the wake-up is a repetition of the newest response. Returns
    /// `false` if the send queue had no room.
    pub(super) fn wake_client(&mut self, end: &mut ServerConnection) -> bool {
        if !end.notify_due {
            return true;
        }
        let newest = end.session.expect.before();
        if let Some(DedicatedQp { connection, replies, .. }) = &mut end.dedicated_qp {
            if connection.room() == 0 {
                return false;
            }
            // An error here means a queue pair in the error state, which its completions report.
            let _ = connection.kick(replies, Imm::Answered.encode());
        } else {
            if !DatagramReply::can_respond(end, &self.shared_ud_qp, newest) {
                return false;
            }
            DatagramReply::respond(end, &mut self.shared_ud_qp, newest, Mode::Reply, true, &self.counters);
        }
        self.counters.answers_told.increment();
        end.notify_due = false;
        true
    }
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Wakes the clients whose calls were answered and that have requested a wake-up.
    #[cold]
    pub(super) fn notify_deferred(&mut self) {
        let mut tags = std::mem::take(&mut self.answered_tags);
        self.engine.deferred_calls.ready.take(&mut tags);
        for tag in tags.drain(..) {
            let id = self.by_tag.get(&tag).copied();
            let Some(at) = id.and_then(|id| self.position(id)) else { continue };
            let end = &mut self.connections[at].end;
            let had_work_due = end.has_work_due();
            end.check_answers();
            self.engine.wake_client(end);
            self.due_connections =
                self.due_connections + usize::from(end.has_work_due()) - usize::from(had_work_due);
        }
        self.answered_tags = tags;
    }
}
