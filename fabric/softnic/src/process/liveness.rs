//! Detection of the exit of other processes, by pidfds. The transport is notified by one call
//! ([`TransportBackend::on_process_exit`]).
//!
//! The state of a socket is not used for this: a forked child may still hold the socket open.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_verbs::{Result, with_sources};

use super::TransportBackend;
use super::peer::Peer;
use super::rendezvous::{has_exited, peer_pidfd};
use super::service_thread::{Service, WatchedFd};

/// Liveness of another process.
pub(crate) struct ProcessLiveness {
    pub(crate) pidfd: OwnedFd,
    has_exited: AtomicBool,
}

impl ProcessLiveness {
    /// Creates it for the process at the other end of a socket.
    pub(crate) fn of_socket_peer(socket: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self { pidfd: peer_pidfd(socket)?, has_exited: AtomicBool::new(false) })
    }

    /// Returns whether the process is known to have exited. Costs one load.
    #[inline]
    pub(crate) fn is_known_exited(&self) -> bool {
        self.has_exited.load(Ordering::Acquire)
    }

    /// Queries the kernel. For waits that must not outlast the process.
    pub(crate) fn has_exited(&self) -> bool {
        if !self.is_known_exited() && has_exited(&self.pidfd) {
            self.mark_exited();
        }
        self.is_known_exited()
    }

    fn mark_exited(&self) {
        self.has_exited.store(true, Ordering::Release);
    }
}

impl Service {
    /// Watches the liveness of a process that sends datagrams to this one, unless it is watched already.
    pub(crate) fn watch_sender(&self, instance: u64, liveness: &Arc<ProcessLiveness>) {
        let is_it = |watched: &WatchedFd| match watched {
            WatchedFd::Peer(peer) => peer.instance == instance,
            WatchedFd::Sender(known, _) => *known == instance,
            _ => false,
        };
        if self.watched.lock().values().any(is_it) {
            return;
        }
        if let Err(error) =
            self.watch_fd(liveness.pidfd.as_fd(), WatchedFd::Sender(instance, liveness.clone()))
        {
            // Its rings are then revoked when other senders need the space.
            tracing::warn!("softnic service: {}", with_sources(&error));
        }
    }

    /// Called when a peer's pidfd indicates its exit.
    pub(super) fn on_peer_exit(&self, backend: &dyn TransportBackend, peer: &Arc<Peer>) {
        self.unwatch(peer);
        backend.process().forget(peer);
        Self::report_exit(backend, peer.instance, &peer.liveness);
    }

    /// Like [`Service::on_peer_exit`], for a sender.
    pub(super) fn on_sender_exit(
        &self,
        backend: &dyn TransportBackend,
        instance: u64,
        liveness: &ProcessLiveness,
    ) {
        self.unwatch_fd(liveness.pidfd.as_fd());
        Self::report_exit(backend, instance, liveness);
    }

    fn report_exit(backend: &dyn TransportBackend, instance: u64, liveness: &ProcessLiveness) {
        // Set first: threads that are notified below must read it.
        liveness.mark_exited();
        backend.on_process_exit(instance);
    }
}
