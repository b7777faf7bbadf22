//! The protocol by which a server goes to sleep without losing a request.
//!
//! A WRITE does not wake the server. Before it sleeps, the server takes these steps:
//! 1. It sets the sleep flag in each connection's *next* response slot, which clients check.
//! 2. It arms its completion queue.
//! 3. It polls all mailboxes once more.
//!
//! A client whose request is too late for the last poll finds the flag, at the latest with its second fetch, and sends
//! a KICK. (A client that does not fetch sends a KICK when no response arrives in time.)

use std::sync::atomic::{Ordering, fence};

use farcall_verbs::Clock;

use super::{Handler, Responder};

/// State between waking and sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// The sleep flags are clear.
    Awake,
    /// The sleep flags are set, and the poll that follows is the last one before sleeping.
    Published,
    /// The server may sleep, or has just woken.
    Asleep,
}

impl Sleep {
    /// Returns the state after an iteration; `any` is whether it found work.
    pub(super) const fn after_turn(self, any: bool) -> Self {
        match (self, any) {
            (Self::Published, false) => Self::Asleep,
            // An iteration after sleeping makes the server awake, whether it found work or not.
            _ => Self::Awake,
        }
    }
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Sets the sleep flags of all clients, before the last poll of the mailboxes.
    pub(super) fn publish_sleep(&mut self) {
        self.engine.counters.arms.increment();
        for open in &self.connections {
            open.end.mark_sleeping(true);
        }
        // Pairs with a client that writes a request and then checks the flag: each side stores first and then loads
        // (Dekker).
        fence(Ordering::SeqCst);
        self.sleep = Sleep::Published;
    }

    /// Drains the channel: its events only mean that the completion queue must be polled.
    pub(super) fn drop_events(&mut self) {
        while let Ok(Some(_)) = self.channel.poll_cq_event() {}
    }

    /// Updates the state after an iteration, and clears the sleep flags when the server is awake.
    pub(super) fn after_turn(&mut self, any: bool) {
        let before = self.sleep;
        self.sleep = before.after_turn(any);
        if any {
            self.engine.deferred_calls.ready().sleeper.disarm();
        }
        if before != Sleep::Awake && self.sleep == Sleep::Awake {
            for open in &self.connections {
                open.end.mark_sleeping(false);
            }
        }
    }
}
