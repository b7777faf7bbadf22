//! Deaths of other processes. They are found here, by pidfds, and told to the way by one call ([`Way::process_ended`]).
//!
//! A socket that was hung up is no death notice: a forked child may still hold it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_verbs::Result;

use super::Way;
use super::peer::Peer;
use super::rendezvous::{has_died, peer_pidfd};
use super::service::{Service, Watched};

/// The life of another process.
pub(crate) struct Lifetime {
    pub(crate) pidfd: OwnedFd,
    has_ended: AtomicBool,
}

impl Lifetime {
    /// Of the process at the other end of a socket.
    pub(crate) fn at_other_end(socket: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self { pidfd: peer_pidfd(socket)?, has_ended: AtomicBool::new(false) })
    }

    /// Whether it is known to have ended; one load.
    #[inline]
    pub(crate) fn is_known_to_have_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Asks the kernel, for waits that must not outlast a death.
    pub(crate) fn has_ended(&self) -> bool {
        if !self.is_known_to_have_ended() && has_died(&self.pidfd) {
            self.end();
        }
        self.is_known_to_have_ended()
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }
}

impl Service {
    /// Watches the life of a process that sends to us, unless it is watched already.
    pub(crate) fn watch_sender(&self, instance: u64, life: &Arc<Lifetime>) {
        let is_it = |watched: &Watched| match watched {
            Watched::Peer(peer) => peer.instance == instance,
            Watched::Sender(known, _) => *known == instance,
            _ => false,
        };
        if self.watched.lock().values().any(is_it) {
            return;
        }
        if let Err(error) = self.add(life.pidfd.as_fd(), Watched::Sender(instance, life.clone())) {
            // What it leaves is then given back when others need the place.
            tracing::warn!("softnic service: {error}");
        }
    }

    /// A peer's pidfd tells of its end.
    pub(super) fn peer_ended(&self, way: &dyn Way, peer: &Arc<Peer>) {
        self.unwatch(peer);
        way.process().forget(peer);
        Self::ended(way, peer.instance, &peer.life);
    }

    /// As [`Service::peer_ended`], for a sender.
    pub(super) fn sender_ended(&self, way: &dyn Way, instance: u64, life: &Lifetime) {
        self.delete(life.pidfd.as_fd());
        Self::ended(way, instance, life);
    }

    fn ended(way: &dyn Way, instance: u64, life: &Lifetime) {
        // First: whoever is made to look must see it.
        life.end();
        way.process_ended(instance);
    }
}
