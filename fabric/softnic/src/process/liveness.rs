//! Detection of the exit of other processes, by pidfds. The transport is notified by one call
//! ([`TransportBackend::on_process_exit`]).
//!
//! The state of a socket is not used for this: a forked child may still hold the socket open.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use farcall_verbs::Result;

use super::rendezvous::{has_exited, peer_pidfd};

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

    pub(super) fn mark_exited(&self) {
        self.has_exited.store(true, Ordering::Release);
    }
}
