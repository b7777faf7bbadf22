//! An endpoint for which a poller polls while the endpoint's thread sleeps: the state of the poller and that of the
//! thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use farcall_shm::{DelegationEnd, DelegationWord};
use farcall_verbs::WakeProbe;
use rustix::event::{EventfdFlags, eventfd};

use super::{Poller, Pollers};

/// An endpoint as seen by its poller.
pub(super) struct DelegatedEndpoint {
    pub(super) word: DelegationWord,
    probe: Arc<dyn WakeProbe>,
    pub(super) event: OwnedFd,
}

impl DelegatedEndpoint {
    fn new(probe: Arc<dyn WakeProbe>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { word: DelegationWord::new(), probe, event })
    }

    /// Polls the endpoint once. Returns whether the poller woke the thread.
    #[inline]
    pub(super) fn poll(&self) -> bool {
        let has_signalled = self.word.is_delegated() && self.probe.has_work() && self.word.signal();
        if has_signalled {
            self.wake();
        }
        has_signalled
    }

    pub(super) fn release(&self) {
        if self.word.release() {
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
pub(crate) struct PollDelegation {
    pub(super) endpoint: Arc<DelegatedEndpoint>,
    poller: Arc<Poller>,
    pollers: Pollers,
    /// Number of delegations that the poller has ended and whose event was not read yet; the poller may be about to
    /// write it.
    events_due: u64,
}

impl PollDelegation {
    /// Registers the endpoint of `probe` at one of the pollers.
    pub(super) fn register(
        poller: Arc<Poller>,
        pollers: Pollers,
        probe: Arc<dyn WakeProbe>,
    ) -> io::Result<Self> {
        let endpoint = Arc::new(DelegatedEndpoint::new(probe)?);
        poller.change(|delegated| delegated.push(Arc::clone(&endpoint)));
        Ok(Self { endpoint, poller, pollers, events_due: 0 })
    }

    /// Returns whether this delegation is for the endpoint with `probe`.
    pub fn is_for(&self, probe: &Arc<dyn WakeProbe>) -> bool {
        Arc::ptr_eq(&self.endpoint.probe, probe)
    }

    /// Returns whether a poller would poll now; `wakes` permits waking one that sleeps.
    pub fn is_available(&self, wakes: bool) -> bool {
        (wakes || !self.poller.parker.is_parked()) && !(self.pollers.0.rule.is_crowded)()
    }

    /// Starts the delegation; returns whether it is in effect. Before the call the thread has recorded in its probe
    /// the values that it has seen, and it must poll once more before it sleeps.
    pub fn begin(&mut self, wakes: bool) -> bool {
        self.endpoint.word.delegate();
        if wakes {
            self.poller.parker.unpark_if_parked();
            return true;
        }
        let is_seen = !self.poller.parker.is_parked();
        if !is_seen {
            self.end();
        }
        is_seen
    }

    /// Ends the delegation, because the thread does not sleep or has woken up. Returns whether the poller had released
    /// the endpoint, so that the thread must sleep on its own events.
    pub fn end(&mut self) -> bool {
        let end = self.endpoint.word.take_back();
        self.events_due += u64::from(end != DelegationEnd::TakenBack);
        self.take_events();
        end == DelegationEnd::Released
    }

    /// Called before the thread sleeps without delegation; a late event would otherwise keep waking it.
    #[inline]
    pub fn take_events(&mut self) {
        if self.events_due > 0 {
            let mut count = [0; 8];
            if rustix::io::read(&self.endpoint.event, &mut count).is_ok() {
                self.events_due = self.events_due.saturating_sub(u64::from_ne_bytes(count));
            }
        }
    }

    /// Returns a descriptor that is readable when the poller has ended the delegation.
    pub fn fd(&self) -> RawFd {
        self.endpoint.event.as_raw_fd()
    }
}

impl Drop for PollDelegation {
    fn drop(&mut self) {
        self.endpoint.word.take_back();
        self.poller.change(|delegated| delegated.retain(|endpoint| !Arc::ptr_eq(endpoint, &self.endpoint)));
    }
}
