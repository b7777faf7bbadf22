//! Inbound grant of a queue pair, as the granting side stores it: the segment that the peer was granted, and the
//! process whose exit ends the peer's accesses.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use farcall_shm::ring::{Consumer, HEAD, Layout, RQ_POSTED, TAKEN, WANT};
use farcall_shm::{Segment, SharedMem, hazard};
use farcall_verbs::Result;

use super::recv_queue::RecvQueue;
use super::remote_cq::RemoteCq;
use crate::process::ProcessLiveness;
use crate::shm_transport::segments::Segments;

/// Time for which revocation waits for an access in progress. It only expires if the peer is stopped inside the access.
pub(crate) const HAZARD_WAIT: Duration = Duration::from_millis(100);

/// Identity of a peer queue pair: process instance, queue pair number, incarnation.
pub(crate) type PeerQpId = (u64, u32, u32);

pub(crate) struct InboundGrant {
    pub(crate) segment: Segment,
    ring_at: usize,
    pub(crate) mem: SharedMem,
    /// Receives that are advertised in the segment.
    receives: Arc<RecvQueue>,
    pub(crate) granted_to: Option<PeerQpId>,
    /// Client to which it was granted.
    pub(crate) client: Option<u64>,
    /// Incarnation of the queue pair: the number of its resets.
    pub(crate) incarnation: u32,
    /// Process to which it was granted. Its exit ends its accesses.
    pub(crate) initiator: Option<Arc<ProcessLiveness>>,
    /// Completion queue at which that process waits for credit.
    pub(crate) credit_waiter: Option<RemoteCq>,
}

impl InboundGrant {
    pub(crate) fn create(
        segments: &Segments,
        layout: &Layout,
        incarnation: u32,
        receives: Arc<RecvQueue>,
    ) -> Result<Self> {
        let segment = segments.allocate(layout.len_bytes(), layout.ring_at())?;
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
            incarnation,
            initiator: None,
            credit_waiter: None,
        })
    }

    /// Returns whether the grant may be transferred to a later incarnation of the peer queue pair that holds it. The
    /// earlier incarnation must have sent nothing; it may not even have received the grant.
    pub(crate) fn may_replace(&self, granted: PeerQpId, peer: PeerQpId, layout: &Layout) -> bool {
        let is_later = peer.2.wrapping_sub(granted.2).cast_signed() > 0;
        let is_unused = self.mem.load(HEAD, Acquire) == 0
            && self.mem.load(TAKEN, Acquire) == 0
            && !Consumer::new(self.mem.clone(), layout).has_record();
        (granted.0, granted.1) == (peer.0, peer.1) && is_later && is_unused
    }

    /// Returns the number of receives posted so far if one of them may have an element with this key; otherwise 0.
    pub(crate) fn posted_with(&self, lkey: u32) -> u64 {
        // The order matters: a receive's keys are recorded before it is counted.
        let posted = self.mem.load(RQ_POSTED, Acquire);
        if self.receives.may_hold(lkey) { posted } else { 0 }
    }

    /// Returns whether no access whose hazard `concerns` selects is in progress.
    pub(crate) fn has_no_access(&self, concerns: impl Fn(u64) -> bool) -> bool {
        has_no_access(&self.mem, self.initiator.as_ref(), concerns)
    }

    /// Called after receives were posted or records consumed: announces the credit to the peer if it waits for it.
    pub(crate) fn notify_credit(&self) {
        if self.mem.load(WANT, Relaxed) != 0
            && let Some(credit_waiter) = &self.credit_waiter
        {
            credit_waiter.announce(true);
        }
    }

    /// Like `notify_credit`, for shared receives. A message that was accepted, or may be written to the offered
    /// receive, completes only when the peer has processed the credit.
    pub(crate) fn notify_shared_credit(&self) {
        if self.mem.load(WANT, Relaxed) != 0
            && let Some(credit_waiter) = &self.credit_waiter
        {
            credit_waiter.request_service();
        }
    }

    /// Returns the part that remains relevant when the queue pair is reset or destroyed.
    pub(crate) fn revoked(&self) -> RevokedGrant {
        RevokedGrant { mem: self.mem.clone(), initiator: self.initiator.clone() }
    }
}

impl Drop for InboundGrant {
    fn drop(&mut self) {
        // Releases the ring, which no process uses any more. The peer may still read the part before it.
        self.segment.discard_from(self.ring_at);
    }
}

/// Inbound segment of a previous incarnation, with its hazard.
pub(crate) struct RevokedGrant {
    mem: SharedMem,
    initiator: Option<Arc<ProcessLiveness>>,
}

impl RevokedGrant {
    /// Returns whether no access whose hazard `concerns` selects is in progress.
    pub(crate) fn has_no_access(&self, concerns: impl Fn(u64) -> bool) -> bool {
        has_no_access(&self.mem, self.initiator.as_ref(), concerns)
    }
}

fn has_no_access(
    mem: &SharedMem,
    initiator: Option<&Arc<ProcessLiveness>>,
    concerns: impl Fn(u64) -> bool,
) -> bool {
    !concerns(hazard::current(mem)) || initiator.is_some_and(|process| process.has_exited())
}

/// Time for which a wait for an access in progress only yields the processor, before it sleeps.
const SPIN_WAIT: Duration = Duration::from_millis(1);

/// Waits until `has_no_access` returns `true`, at most until `deadline`. Returns whether it did.
pub(crate) fn wait_until(deadline: Instant, has_no_access: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !has_no_access() {
        let now = Instant::now();
        if now >= deadline {
            return false;
        }
        if now - begun < SPIN_WAIT {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SPIN_WAIT);
        }
    }
    true
}
