//! An endpoint that a poller looks at while its owner sleeps: the poller's side of it, and the owner's.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use farcall_shm::{CoverEnd, CoverWord};
use farcall_verbs::Probe;
use rustix::event::{EventfdFlags, eventfd};

use super::{Poller, Pollers};

/// One endpoint, as its poller sees it.
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

    /// Returns whether it rang.
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
        // The counter can only be full if it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// An endpoint's place at its poller, in the hands of its owner.
pub(crate) struct Cover {
    pub(super) covered: Arc<Covered>,
    poller: Arc<Poller>,
    pollers: Pollers,
    /// Covers that the poller has ended and whose event is not taken yet: the poller may be just before giving it.
    events_due: u64,
}

impl Cover {
    /// At one of the pollers.
    pub(super) fn at(poller: Arc<Poller>, pollers: Pollers, probe: Arc<dyn Probe>) -> io::Result<Self> {
        let covered = Arc::new(Covered::new(probe)?);
        poller.change(|covers| covers.push(Arc::clone(&covered)));
        Ok(Self { covered, poller, pollers, events_due: 0 })
    }

    /// Whether it is for the endpoint with this probe.
    pub fn is_of(&self, probe: &Arc<dyn Probe>) -> bool {
        Arc::ptr_eq(&self.covered.probe, probe)
    }

    /// Whether a poller would look now; `wakes` if one that sleeps may be woken for it.
    pub fn is_offered(&self, wakes: bool) -> bool {
        (wakes || !self.poller.sleeper.is_asleep()) && !(self.pollers.0.rule.is_crowded)()
    }

    /// The owner, who has told its probe what it knows, is covered from now on if this returns true. It looks once more
    /// before it sleeps.
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

    /// The owner does not sleep, or no more. Returns whether it was left: it is to sleep by events.
    pub fn end(&mut self) -> bool {
        let end = self.covered.word.take_back();
        self.events_due += u64::from(end != CoverEnd::TakenBack);
        self.take_events();
        end == CoverEnd::Left
    }

    /// To be called before the owner sleeps without being covered: an event that came late would wake it for ever.
    #[inline]
    pub fn take_events(&mut self) {
        if self.events_due > 0 {
            let mut count = [0; 8];
            if rustix::io::read(&self.covered.event, &mut count).is_ok() {
                self.events_due = self.events_due.saturating_sub(u64::from_ne_bytes(count));
            }
        }
    }

    /// Readable when the cover has ended.
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
