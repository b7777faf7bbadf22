//! Detection of the exit of other processes, by pidfds. The transport is notified by one call ([`Way::process_ended`]).
//!
//! The state of a socket is not used for this: a forked child may still hold the socket open.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_verbs::Result;

use super::Way;
use super::peer::Peer;
use super::rendezvous::{has_died, peer_pidfd};
use super::service_thread::{Service, Watched};

/// Liveness of another process.
pub(crate) struct Lifetime {
    pub(crate) pidfd: OwnedFd,
    has_ended: AtomicBool,
}

impl Lifetime {
    /// Creates it for the process at the other end of a socket.
    pub(crate) fn at_other_end(socket: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self { pidfd: peer_pidfd(socket)?, has_ended: AtomicBool::new(false) })
    }

    /// Returns whether the process is known to have exited. Costs one load.
    #[inline]
    pub(crate) fn is_known_to_have_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Queries the kernel. For waits that must not outlast the process.
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
    /// Watches the liveness of a process that sends datagrams to this one, unless it is watched already.
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
            // Its rings are then revoked when other senders need the space.
            tracing::warn!("softnic service: {error}");
        }
    }

    /// Called when a peer's pidfd indicates its exit.
    pub(super) fn peer_ended(&self, way: &dyn Way, peer: &Arc<Peer>) {
        self.unwatch(peer);
        way.process().forget(peer);
        Self::ended(way, peer.instance, &peer.life);
    }

    /// Like [`Service::peer_ended`], for a sender.
    pub(super) fn sender_ended(&self, way: &dyn Way, instance: u64, life: &Lifetime) {
        self.delete(life.pidfd.as_fd());
        Self::ended(way, instance, life);
    }

    fn ended(way: &dyn Way, instance: u64, life: &Lifetime) {
        // Set first: threads that are notified below must read it.
        life.end();
        way.process_ended(instance);
    }
}
