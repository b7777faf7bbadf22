//! A completion queue of a peer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farcall_shm::readiness::{LEN_BYTES, MAX_BITS, Readiness};
use farcall_shm::{Mapping, Segment, SharedMem};

use crate::process::rendezvous::CqLocation;
use crate::process::{KernelObjectId, Waker, intern};

/// Maps the readiness segment of a completion queue. Many queue pairs announce to one queue, which is mapped once.
fn map(fd: &OwnedFd, offset_bytes: u32) -> Option<Arc<Mapping>> {
    let file = rustix::fs::fstat(fd).ok()?;
    let location = KernelObjectId::Memory { device: file.st_dev, inode: file.st_ino, offset_bytes };
    intern(location, || Segment::map_peer_segment(fd.as_fd(), offset_bytes.into(), LEN_BYTES, true)).ok()
}

/// A completion queue of the peer at which messages are announced, or at which the peer waits for credit.
pub(crate) struct RemoteCq {
    readiness: Readiness,
    bit: u32,
    waker: Option<Arc<Waker>>,
    /// Wakes the service thread of the peer process.
    service: Option<Arc<Waker>>,
}

impl RemoteCq {
    /// Creates it from the descriptors of a message: readiness, then the event descriptor if there is one, and that of
    /// the service thread.
    pub(crate) fn from_fds(location: CqLocation, fds: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let CqLocation { offset, bit, event } = location;
        let mapping = map(&fds.next()?, offset)?;
        let readiness = Readiness::open(SharedMem::new(mapping))?;
        let waker = if event { Some(Waker::from_peer_fd(fds.next()?)) } else { None };
        let service = if event { fds.next().map(Waker::from_peer_fd) } else { None };
        ((bit as usize) < MAX_BITS).then_some(Self { readiness, bit, waker, service })
    }

    #[inline]
    pub(crate) fn announce(&self, solicited: bool) {
        self.readiness.announce(self.bit, solicited, || {
            if let Some(waker) = &self.waker {
                waker.wake();
            }
        });
    }

    /// Closes the descriptor that only [`Self::request_service`] needs.
    pub(crate) fn announce_only(&mut self) {
        self.service = None;
    }

    /// Requests service from the peer process: if its application thread sleeps, the service thread continues the work.
    /// No event is raised.
    pub(crate) fn request_service(&self) {
        self.readiness.request_service(self.bit, || {
            if let Some(waker) = &self.service {
                waker.wake();
            }
        });
    }
}
