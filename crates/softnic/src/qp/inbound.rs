//! The way in to a queue pair as its owner keeps it: the segment that the peer was granted, and whose life an access of
//! the peer ends with.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_verbs::Result;

use super::remote::RemoteCq;
use crate::hazard;
use crate::rendezvous::has_died;
use crate::ring::{Layout, WANT};
use crate::shared::{Segment, SharedMem};
use crate::sync::atomic::Ordering::Relaxed;

/// How long revocation waits for an access under way; longer only if the peer is stopped inside one.
pub(crate) const HAZARD_WAIT: Duration = Duration::from_millis(100);

/// Who asks for the way in: process instance, queue pair number, life of the queue pair.
pub(crate) type Asker = (u64, u32, u32);

pub(super) struct Inbound {
    pub(super) segment: Segment,
    pub(super) mem: SharedMem,
    pub(super) granted_to: Option<Asker>,
    /// The client that was granted it.
    pub(super) client: Option<u64>,
    /// How often the pair was reset.
    pub(super) life: u32,
    /// The life of the process that was granted, whose death ends its accesses.
    pub(super) initiator: Option<Arc<OwnedFd>>,
    /// Where that process waits for credit.
    pub(super) creditor: Option<RemoteCq>,
}

impl Inbound {
    pub(super) fn create(layout: &Layout, life: u32) -> Result<Self> {
        let segment = Segment::create("farcall-qp", layout.len_bytes())?;
        let mem = segment.memory();
        layout.write_header(&mem);
        Ok(Self { segment, mem, granted_to: None, client: None, life, initiator: None, creditor: None })
    }

    /// Whether no access that `concerns` selects by its hazard is under way.
    pub(super) fn is_clear(&self, concerns: impl Fn(u64) -> bool) -> bool {
        is_clear(&self.mem, self.initiator.as_ref(), concerns)
    }

    /// After receives were posted or records consumed: wakes the peer if it waits for that.
    pub(super) fn give_credit(&self) {
        if self.mem.load(WANT, Relaxed) != 0
            && let Some(creditor) = &self.creditor
        {
            creditor.announce(true);
        }
    }

    /// As `give_credit`, where receives are shared: what was accepted, or may be placed, completes when the peer has looked.
    pub(super) fn give_shared_credit(&self) {
        if self.mem.load(WANT, Relaxed) != 0
            && let Some(creditor) = &self.creditor
        {
            creditor.nudge();
        }
    }

    /// What is left of it when the pair begins a new life or ends.
    pub(super) fn past(&self) -> PastInbound {
        PastInbound { mem: self.mem.clone(), initiator: self.initiator.clone() }
    }
}

/// The segment of a life that is over, with its hazard.
pub(crate) struct PastInbound {
    mem: SharedMem,
    initiator: Option<Arc<OwnedFd>>,
}

impl PastInbound {
    /// As [`Inbound::is_clear`].
    pub(crate) fn is_clear(&self, concerns: impl Fn(u64) -> bool) -> bool {
        is_clear(&self.mem, self.initiator.as_ref(), concerns)
    }
}

fn is_clear(mem: &SharedMem, initiator: Option<&Arc<OwnedFd>>, concerns: impl Fn(u64) -> bool) -> bool {
    !concerns(hazard::current(mem)) || initiator.is_some_and(|life| has_died(life))
}

/// For how long an access under way is waited for without giving the processor away for more than a turn.
const QUICK: Duration = Duration::from_millis(1);

/// Waits until `is_clear`, but not beyond `deadline`; returns whether it is.
pub(super) fn wait_until(deadline: Instant, is_clear: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_clear() {
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        if now - begun < QUICK {
            std::thread::yield_now();
        } else {
            std::thread::sleep(QUICK);
        }
    }
    true
}
