//! How a server thread learns of answers that came later, from any thread, and tells the clients that wait for them.
//!
//! Who answers leaves the tag of the session, and wakes the server thread if it sleeps. A client that wants to be told
//! (it asked in vain for its result to be written, or it is about to sleep) is woken once, with [`Imm::Answered`], and
//! then asks. What was answered before it wanted to be told is found when it says so; what is answered after that leaves
//! its tag. So no order of the two loses the wake-up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_drive::Sleeper;
use farcall_verbs::{Clock, Error, Result};

use super::serve::Engine;
use super::{Handler, OwnPair, Responder, ServerEnd};
use crate::paths::{DatagramReply, ResponsePath};
use crate::wire::{Imm, Mode};

/// Sessions of which calls were answered since the server thread looked, and what it sleeps on.
#[derive(Debug)]
pub(super) struct Answered {
    tags: Mutex<Vec<u32>>,
    has_any: AtomicBool,
    pub sleeper: Sleeper,
}

impl Answered {
    /// # Errors
    /// If the system has no descriptor to sleep on.
    pub fn new() -> Result<Self> {
        let failed = |error| Error::os("make", "a descriptor that answers wake", error);
        let sleeper = Sleeper::new().map_err(failed)?;
        Ok(Self { tags: Mutex::default(), has_any: AtomicBool::new(false), sleeper })
    }

    fn tags(&self) -> MutexGuard<'_, Vec<u32>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of this session was answered.
    pub fn push(&self, session_tag: u32) {
        let mut tags = self.tags();
        if tags.last() != Some(&session_tag) {
            tags.push(session_tag);
        }
        // Inside the lock, so that who takes the tags cannot clear the flag of a newer one.
        self.has_any.store(true, Ordering::Release);
        drop(tags);
        self.sleeper.wake_if_asleep();
    }

    /// Whether there is anything: one load.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Exchanges what came for an empty list, whose memory is used next.
    fn take(&self, empty: &mut Vec<u32>) {
        let mut tags = self.tags();
        std::mem::swap(&mut *tags, empty);
        self.has_any.store(false, Ordering::Release);
    }
}

impl ServerEnd {
    /// The client wants to be told of answers from now on.
    pub(super) const fn tell_from_now_on(&mut self) {
        self.tells = self.can_tell;
    }

    /// Owes the client a wake-up if it wants to be told, and there is something to tell of.
    pub(super) fn look_for_answers(&mut self) {
        self.must_tell |= self.tells && self.session.has_answers();
        self.tells &= !self.must_tell;
    }
}

impl<H: Handler, C: Clock> Engine<H, C> {
    /// Wakes the client if that is owed. Over UD the newest response once more is the wake-up. Returns whether there
    /// was room.
    pub(super) fn wake_for_answers(&mut self, end: &mut ServerEnd) -> bool {
        if !end.must_tell {
            return true;
        }
        let newest = end.session.expect.before();
        if let Some(OwnPair { connection, replies, .. }) = &mut end.own {
            if connection.room() == 0 {
                return false;
            }
            // What is refused all the same is a queue pair in error, which its completions report.
            let _ = connection.kick(replies, Imm::Answered.encode());
        } else {
            if !DatagramReply::can_respond(end, &self.thread_pair, newest) {
                return false;
            }
            DatagramReply::respond(end, &mut self.thread_pair, newest, Mode::Reply, true, &self.counters);
        }
        self.counters.answers_told.increment();
        end.must_tell = false;
        true
    }
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Tells those whose calls were answered, and who want to be told.
    #[cold]
    pub(super) fn tell_of_answers(&mut self) {
        let mut tags = std::mem::take(&mut self.answered_tags);
        self.engine.deferring.answered.take(&mut tags);
        for tag in tags.drain(..) {
            let id = self.by_tag.get(&tag).copied();
            let Some(at) = id.and_then(|id| self.position(id)) else { continue };
            let end = &mut self.connections[at].end;
            let owed_before = end.owes();
            end.look_for_answers();
            self.engine.wake_for_answers(end);
            self.owing = self.owing + usize::from(end.owes()) - usize::from(owed_before);
        }
        self.answered_tags = tags;
    }
}
