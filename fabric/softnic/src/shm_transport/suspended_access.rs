//! Accesses during which a peer process was stopped when the queue pair was reset or destroyed.
//!
//! The peer may resume at any time. Until it ends the access or exits, the access counts as a user of the memory, even
//! if the queue pair has been reconnected or no longer exists.

use std::sync::MutexGuard;

use farcall_shm::Mutex;

use super::qp::RevokedGrant;

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

    /// Stores the inbound grant of a queue pair during whose reset an access was in progress. `domains` are the
    /// protection domains of the queue pair and of the receives that its peer could write to. Call it before the queue
    /// pair shows its next state.
    pub(super) fn record(&self, qpn: u32, domains: (u32, u32), inbound: RevokedGrant) {
        self.lock().push(SuspendedAccess { qpn, domains, inbound });
    }

    /// Returns whether no access is in progress that the queue pair admitted before it was reset.
    pub(crate) fn has_no_access_of(&self, qpn: u32) -> bool {
        self.lock().iter().all(|suspended| suspended.qpn != qpn)
    }

    /// Returns whether no access is in progress whose protection domains (see [`SuspendedAccesses::record`]) and hazard
    /// `concerns` selects.
    pub(super) fn has_none(&self, concerns: impl Fn((u32, u32), u64) -> bool) -> bool {
        self.lock()
            .iter()
            .all(|suspended| suspended.inbound.has_no_access(|hazard| concerns(suspended.domains, hazard)))
    }

    /// Removes the accesses that have ended.
    pub(super) fn prune(&self) {
        drop(self.lock());
    }
}
