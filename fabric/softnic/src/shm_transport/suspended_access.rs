//! Accesses during which a peer process was stopped when the queue pair was reset or destroyed.
//!
//! The peer may resume at any time. Until it ends the access or exits, the access counts as a user of the memory, even
//! if the queue pair has been reconnected or no longer exists.

use std::sync::MutexGuard;
use std::time::Instant;

use farcall_shm::{Mutex, hazard};

use super::context::ShmTransport;
use super::qp::RevokedGrant;
use crate::process::regions::GrantUse;

struct SuspendedAccess {
    qpn: u32,
    /// Protection domains of the queue pair and of the receives that its peer could write to.
    domains: (u32, u32),
    inbound: RevokedGrant,
}

#[derive(Default)]
pub(crate) struct SuspendedAccesses(Mutex<Vec<SuspendedAccess>>);

impl SuspendedAccesses {
    fn lock(&self) -> MutexGuard<'_, Vec<SuspendedAccess>> {
        let mut suspended = self.0.lock();
        suspended.retain(|suspended| !suspended.inbound.has_no_access(|hazard| hazard != 0));
        suspended
    }

    /// Stores the inbound grant of a queue pair during whose reset an access was in progress. Call it before the queue
    /// pair shows its next state.
    pub(super) fn record(&self, qpn: u32, domains: (u32, u32), inbound: RevokedGrant) {
        self.lock().push(SuspendedAccess { qpn, domains, inbound });
    }

    /// Returns whether no access is in progress that the queue pair admitted before it was reset.
    pub(crate) fn has_no_access_of(&self, qpn: u32) -> bool {
        self.lock().iter().all(|suspended| suspended.qpn != qpn)
    }

    /// Removes the accesses that have ended.
    pub(super) fn prune(&self) {
        drop(self.lock());
    }
}

impl ShmTransport {
    /// Called after a region of `pd` was revoked. Waits until no peer accesses the region, at most until `deadline`;
    /// returns whether none does.
    pub(crate) fn wait_out_of_region(
        &self,
        pd: u32,
        rkey: u32,
        granted: GrantUse,
        deadline: Instant,
    ) -> bool {
        // A peer reaches a region only through queue pairs of its domain, and writes only to receives of that domain.
        let concerns = |(own, receives): (u32, u32)| {
            move |hazard| {
                (own == pd && hazard == hazard::of_region(rkey))
                    || (receives == pd && granted.receive && hazard == hazard::RECEIVES)
            }
        };
        let mut clear = true;
        for qp in self.queue_pairs() {
            clear &= qp.wait_until_no_access(deadline, concerns((qp.pd, qp.receives_pd())));
        }
        // Read last: an inbound grant that was reset in the meantime is in this list, or was waited for above.
        let suspended = self.suspended.lock();
        clear
            && suspended.iter().all(|suspended| suspended.inbound.has_no_access(concerns(suspended.domains)))
    }
}
