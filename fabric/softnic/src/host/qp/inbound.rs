//! The way in to a queue pair as its owner keeps it: the segment that the peer was granted, and whose life an access of
//! the peer ends with.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use farcall_shm::ring::{Consumer, HEAD, Layout, RQ_POSTED, TAKEN, WANT};
use farcall_shm::{Segment, SharedMem, hazard};
use farcall_verbs::Result;

use super::receive::RecvQueue;
use super::remote_cq::RemoteCq;
use crate::host::segments::Segments;
use crate::life::Lifetime;

/// How long revocation waits for an access under way; longer only if the peer is stopped inside one.
pub(crate) const HAZARD_WAIT: Duration = Duration::from_millis(100);

/// Who asks for the way in: process instance, queue pair number, life of the queue pair.
pub(crate) type Asker = (u64, u32, u32);

pub(crate) struct Inbound {
    pub(crate) segment: Segment,
    ring_at: usize,
    pub(crate) mem: SharedMem,
    /// The receives that are advertised there.
    receives: Arc<RecvQueue>,
    pub(crate) granted_to: Option<Asker>,
    /// The client that was granted it.
    pub(crate) client: Option<u64>,
    /// How often the pair was reset.
    pub(crate) life: u32,
    /// The life of the process that was granted, whose death ends its accesses.
    pub(crate) initiator: Option<Arc<Lifetime>>,
    /// Where that process waits for credit.
    pub(crate) creditor: Option<RemoteCq>,
}

impl Inbound {
    pub(crate) fn create(
        segments: &Segments,
        layout: &Layout,
        life: u32,
        receives: Arc<RecvQueue>,
    ) -> Result<Self> {
        let segment = segments.take(layout.len_bytes(), layout.ring_at())?;
        let mem = segment.memory();
        layout.write_header(&mem);
        let ring_at = layout.ring_at();
        Ok(Self {
            segment,
            ring_at,
            mem,
            receives,
            granted_to: None,
            client: None,
            life,
            initiator: None,
            creditor: None,
        })
    }

    /// Whether the way in may pass to a later life of the pair that it was granted to: that has sent nothing, and may
    /// not even have seen the grant, if it ended while it was waited for.
    pub(crate) fn may_pass(&self, granted: Asker, asker: Asker, layout: &Layout) -> bool {
        let is_later = asker.2.wrapping_sub(granted.2).cast_signed() > 0;
        let is_unused = self.mem.load(HEAD, Acquire) == 0
            && self.mem.load(TAKEN, Acquire) == 0
            && !Consumer::new(self.mem.clone(), layout).has_record();
        (granted.0, granted.1) == (asker.0, asker.1) && is_later && is_unused
    }

    /// How many receives were posted until now, if one of them may have an element of this key; 0 otherwise.
    pub(crate) fn posted_with(&self, lkey: u32) -> u64 {
        // In this order: the keys of what is counted are noted.
        let posted = self.mem.load(RQ_POSTED, Acquire);
        if self.receives.may_hold(lkey) { posted } else { 0 }
    }

    /// Whether no access that `concerns` selects by its hazard is under way.
    pub(crate) fn is_clear(&self, concerns: impl Fn(u64) -> bool) -> bool {
        is_clear(&self.mem, self.initiator.as_ref(), concerns)
    }

    /// After receives were posted or records consumed: wakes the peer if it waits for that.
    pub(crate) fn give_credit(&self) {
        if self.mem.load(WANT, Relaxed) != 0
            && let Some(creditor) = &self.creditor
        {
            creditor.announce(true);
        }
    }

    /// As `give_credit`, where receives are shared: what was accepted, or may be placed, completes when the peer has
    /// looked.
    pub(crate) fn give_shared_credit(&self) {
        if self.mem.load(WANT, Relaxed) != 0
            && let Some(creditor) = &self.creditor
        {
            creditor.nudge();
        }
    }

    /// What is left of it when the pair begins a new life or ends.
    pub(crate) fn past(&self) -> PastInbound {
        PastInbound { mem: self.mem.clone(), initiator: self.initiator.clone() }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        // The ring is nobody's any more. Before it stands what the peer still looks at.
        self.segment.give_back(self.ring_at);
    }
}

/// The segment of a life that is over, with its hazard.
pub(crate) struct PastInbound {
    mem: SharedMem,
    initiator: Option<Arc<Lifetime>>,
}

impl PastInbound {
    /// As [`Inbound::is_clear`].
    pub(crate) fn is_clear(&self, concerns: impl Fn(u64) -> bool) -> bool {
        is_clear(&self.mem, self.initiator.as_ref(), concerns)
    }
}

fn is_clear(mem: &SharedMem, initiator: Option<&Arc<Lifetime>>, concerns: impl Fn(u64) -> bool) -> bool {
    !concerns(hazard::current(mem)) || initiator.is_some_and(|life| life.has_ended())
}

/// For how long an access under way is waited for without giving the processor away for more than a turn.
const QUICK: Duration = Duration::from_millis(1);

/// Waits until `is_clear`, but not beyond `deadline`; returns whether it is.
pub(crate) fn wait_until(deadline: Instant, is_clear: impl Fn() -> bool) -> bool {
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
