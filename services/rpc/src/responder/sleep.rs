//! How a server goes to sleep without losing a request.
//!
//! A WRITE wakes nobody. So the server says that it sleeps where clients look: in the flags of each connection's *next*
//! response slot. Then it arms its completion queue and looks at all mailboxes once more. A client that wrote its
//! request too late to be seen by that look finds the flag, at the latest with its second fetch, and sends a KICK. (A
//! client that does not fetch kicks when no response comes within a bound.)

use std::sync::atomic::{Ordering, fence};

use farcall_verbs::Clock;

use super::{Handler, Responder};

/// Where the server is between waking and sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// No client believes that it sleeps.
    Awake,
    /// It said that it sleeps; the look that follows is the last one before.
    Published,
    /// It may sleep or just have woken.
    Asleep,
}

impl Sleep {
    /// Where it is after a turn that found something to do, or nothing.
    pub(super) const fn after_turn(self, any: bool) -> Self {
        match (self, any) {
            (Self::Published, false) => Self::Asleep,
            // A turn after sleep is awake, whatever it found.
            _ => Self::Awake,
        }
    }
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Says to all clients that the server sleeps, before it looks at the mailboxes for the last time.
    pub(super) fn publish_sleep(&mut self) {
        self.engine.counters.arms.increment();
        for open in &self.connections {
            open.end.mark_sleeping(true);
        }
        // Crosses with a client's request and its look at the flag: each side stores first, then loads (Dekker).
        fence(Ordering::SeqCst);
        self.sleep = Sleep::Published;
    }

    /// Takes the events that woke us off the channel: they only say "poll".
    pub(super) fn drop_events(&mut self) {
        while let Ok(Some(_)) = self.channel.poll_cq_event() {}
    }

    /// Keeps the flag true while it sleeps, and takes it back once it is awake.
    pub(super) fn after_turn(&mut self, any: bool) {
        let before = self.sleep;
        self.sleep = before.after_turn(any);
        if any {
            self.engine.deferring.answered.sleeper.disarm();
        }
        if before != Sleep::Awake && self.sleep == Sleep::Awake {
            for open in &self.connections {
                open.end.mark_sleeping(false);
            }
        }
    }
}
