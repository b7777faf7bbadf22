//! Accesses in which a peer was stopped when their queue pair was reset or destroyed.
//!
//! The peer may go on at any time. Until it leaves or dies, whoever asks whether memory can be reused must hear of it,
//! although the queue pair has been connected anew, or does not exist any more.

use std::sync::MutexGuard;
use std::time::Instant;

use farcall_shm::{Mutex, hazard};

use super::process::Host;
use super::qp::PastInbound;
use crate::life::regions::Granted;

struct Stopped {
    qpn: u32,
    /// Of the queue pair, and of the receives that its peer could place into.
    domains: (u32, u32),
    inbound: PastInbound,
}

#[derive(Default)]
pub(crate) struct StoppedAccesses(Mutex<Vec<Stopped>>);

impl StoppedAccesses {
    fn lock(&self) -> MutexGuard<'_, Vec<Stopped>> {
        let mut stopped = self.0.lock();
        stopped.retain(|stopped| !stopped.inbound.is_clear(|hazard| hazard != 0));
        stopped
    }

    /// Remembers a queue pair's way in with an access under way. Call before the queue pair shows its next state.
    pub(super) fn remember(&self, qpn: u32, domains: (u32, u32), inbound: PastInbound) {
        self.lock().push(Stopped { qpn, domains, inbound });
    }

    /// Whether nobody is inside an access that the queue pair admitted before it was reset.
    pub(crate) fn has_none_of(&self, qpn: u32) -> bool {
        self.lock().iter().all(|stopped| stopped.qpn != qpn)
    }

    /// Forgets those that have ended.
    pub(super) fn prune(&self) {
        drop(self.lock());
    }
}

impl Host {
    /// After a region of `pd` was revoked: waits until no peer is inside an access to it, but not beyond `deadline`;
    /// returns whether none is.
    pub(crate) fn wait_out_of_region(&self, pd: u32, rkey: u32, granted: Granted, deadline: Instant) -> bool {
        // A peer reaches a region only through queue pairs of its domain, and places only into receives of that domain.
        let concerns = |(own, receives): (u32, u32)| {
            move |hazard| {
                (own == pd && hazard == hazard::of_region(rkey))
                    || (receives == pd && granted.receive && hazard == hazard::RECEIVES)
            }
        };
        let mut clear = true;
        for qp in self.queue_pairs() {
            clear &= qp.wait_clear(deadline, concerns((qp.pd, qp.receives_pd())));
        }
        // Last: what was reset since is here, or was waited for above.
        let stopped = self.stopped.lock();
        clear && stopped.iter().all(|stopped| stopped.inbound.is_clear(concerns(stopped.domains)))
    }
}
