//! An endpoint for which a poller polls while the endpoint's thread sleeps: the state of the poller and that of the
//! thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use farcall_shm::{CoverEnd, CoverWord};
use farcall_verbs::Probe;
use rustix::event::{EventfdFlags, eventfd};

use super::{Poller, Pollers};

/// An endpoint as seen by its poller.
pub(super) struct Covered {
    pub(super) word: CoverWord,
    probe: Arc<dyn Probe>,
    pub(super) event: OwnedFd,
}

impl Covered {
    fn new(probe: Arc<dyn Probe>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { word: CoverWord::new(), probe, event })
    }

    /// Polls the endpoint once. Returns whether the poller woke the thread.
    #[inline]
    pub(super) fn look(&self) -> bool {
        let rings = self.word.is_covered() && self.probe.has_news() && self.word.ring();
        if rings {
            self.wake();
        }
        rings
    }

    pub(super) fn leave(&self) {
        if self.word.leave() {
            self.wake();
        }
    }

    #[cold]
    pub(super) fn wake(&self) {
        // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// The delegation of one endpoint to its poller, owned by the endpoint's thread.
pub(crate) struct Cover {
    pub(super) covered: Arc<Covered>,
    poller: Arc<Poller>,
    pollers: Pollers,
    /// Number of delegations that the poller has ended and whose event was not read yet; the poller may be about to
    /// write it.
    events_due: u64,
}

impl Cover {
    /// Registers the endpoint of `probe` at one of the pollers.
    pub(super) fn at(poller: Arc<Poller>, pollers: Pollers, probe: Arc<dyn Probe>) -> io::Result<Self> {
        let covered = Arc::new(Covered::new(probe)?);
        poller.change(|covers| covers.push(Arc::clone(&covered)));
        Ok(Self { covered, poller, pollers, events_due: 0 })
    }

    /// Returns whether this delegation is for the endpoint with `probe`.
    pub fn is_of(&self, probe: &Arc<dyn Probe>) -> bool {
        Arc::ptr_eq(&self.covered.probe, probe)
    }

    /// Returns whether a poller would poll now; `wakes` permits waking one that sleeps.
    pub fn is_offered(&self, wakes: bool) -> bool {
        (wakes || !self.poller.sleeper.is_asleep()) && !(self.pollers.0.rule.is_crowded)()
    }

    /// Starts the delegation; returns whether it is in effect. Before the call the thread has recorded in its probe
    /// the values that it has seen, and it must poll once more before it sleeps.
    pub fn begin(&mut self, wakes: bool) -> bool {
        self.covered.word.cover();
        if wakes {
            self.poller.sleeper.wake_if_asleep();
            return true;
        }
        let is_seen = !self.poller.sleeper.is_asleep();
        if !is_seen {
            self.end();
        }
        is_seen
    }

    /// Ends the delegation, because the thread does not sleep or has woken up. Returns whether the poller had released
    /// the endpoint, so that the thread must sleep on its own events.
    pub fn end(&mut self) -> bool {
        let end = self.covered.word.take_back();
        self.events_due += u64::from(end != CoverEnd::TakenBack);
        self.take_events();
        end == CoverEnd::Left
    }

    /// Called before the thread sleeps without delegation; a late event would otherwise keep waking it.
    #[inline]
    pub fn take_events(&mut self) {
        if self.events_due > 0 {
            let mut count = [0; 8];
            if rustix::io::read(&self.covered.event, &mut count).is_ok() {
                self.events_due = self.events_due.saturating_sub(u64::from_ne_bytes(count));
            }
        }
    }

    /// Returns a descriptor that is readable when the poller has ended the delegation.
    pub fn fd(&self) -> RawFd {
        self.covered.event.as_raw_fd()
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        self.covered.word.take_back();
        self.poller.change(|covers| covers.retain(|covered| !Arc::ptr_eq(covered, &self.covered)));
    }
}
