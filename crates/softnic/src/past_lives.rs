//! Lives of queue pairs that ended, by RESET or destruction, while a stopped peer was inside an access.
//!
//! The peer may go on at any time. Until it leaves or dies, whoever asks whether memory can be reused must hear of it,
//! although the queue pair has a new life, or none.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::hazard;
use crate::process::Process;
use crate::qp::PastInbound;
use crate::regions::Granted;

struct PastLife {
    qpn: u32,
    /// Of the queue pair, and of the receives that its peer could place into.
    domains: (u32, u32),
    inbound: PastInbound,
}

#[derive(Default)]
pub(crate) struct PastLives(Mutex<Vec<PastLife>>);

impl PastLives {
    fn lock(&self) -> MutexGuard<'_, Vec<PastLife>> {
        let mut lives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lives.retain(|life| !life.inbound.is_clear(|hazard| hazard != 0));
        lives
    }

    /// Keeps what is left of a life. Call before the queue pair shows its next one.
    pub(crate) fn remember(&self, qpn: u32, domains: (u32, u32), inbound: PastInbound) {
        self.lock().push(PastLife { qpn, domains, inbound });
    }

    /// Whether nobody is inside an access that an earlier life of the queue pair admitted.
    pub(crate) fn are_quiesced(&self, qpn: u32) -> bool {
        self.lock().iter().all(|life| life.qpn != qpn)
    }

    /// Forgets those that have become quiet.
    pub(crate) fn prune(&self) {
        drop(self.lock());
    }
}

impl Process {
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
            clear &= qp.wait_clear(deadline, concerns((qp.pd(), qp.receives_pd())));
        }
        // Last: a life that ended since is here, or was waited for above.
        let lives = self.past_lives.lock();
        clear && lives.iter().all(|life| life.inbound.is_clear(concerns(life.domains)))
    }
}
