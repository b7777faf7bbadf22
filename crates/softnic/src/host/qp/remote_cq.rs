//! A completion queue of a peer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use farcall_shm::fork::Generation;
use farcall_shm::readiness::{LEN_BYTES, MAX_BITS, Readiness};
use farcall_shm::{Mapping, Mutex, Segment, SharedMem};

use crate::life::Waker;
use crate::life::rendezvous::CqPlace;

/// The memory of a peer's completion queue: device and inode of its memfd, and where it begins there.
type Place = (u64, u64, u32);

/// Peers' completion queues in use: many queue pairs announce to one, which is mapped once.
static MAPPED: Mutex<BTreeMap<Place, (Generation, Weak<Mapping>)>> = Mutex::new(BTreeMap::new());

fn map(fd: &OwnedFd, offset: u32) -> Option<Arc<Mapping>> {
    let mapped = || Segment::map_foreign(fd.as_fd(), offset.into(), LEN_BYTES, true).ok();
    let file = rustix::fs::fstat(fd).ok()?;
    let place = (file.st_dev, file.st_ino, offset);
    // Not waited for: in a forked child nobody may be left to give it back.
    let Some(mut known) = MAPPED.try_lock() else { return mapped() };
    let same = known.get(&place).filter(|(born, _)| !born.is_inherited());
    if let Some(mapping) = same.and_then(|(_, mapping)| mapping.upgrade()) {
        return Some(mapping);
    }
    let mapping = mapped()?;
    // Now and then, so that there are not many more than live.
    if known.len().is_power_of_two() {
        known.retain(|_, (_, mapping)| mapping.strong_count() > 0);
    }
    known.insert(place, (Generation::current(), Arc::downgrade(&mapping)));
    Some(mapping)
}

/// A completion queue of the peer: where our messages are announced, or where it waits for credit from us.
pub(crate) struct RemoteCq {
    readiness: Readiness,
    bit: u32,
    waker: Option<Arc<Waker>>,
    /// Wakes the service thread of its process.
    service: Option<Arc<Waker>>,
}

impl RemoteCq {
    /// Of the descriptors that came with a frame: readiness, then the event descriptor if there is one, and its
    /// service thread's.
    pub(crate) fn from_fds(place: CqPlace, fds: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let CqPlace { offset, bit, event } = place;
        let mapping = map(&fds.next()?, offset)?;
        let readiness = Readiness::open(SharedMem::new(mapping))?;
        let waker = if event { Some(Waker::foreign(fds.next()?)) } else { None };
        let service = if event { fds.next().map(Waker::foreign) } else { None };
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

    /// Gives back what only [`Self::nudge`] needs.
    pub(crate) fn announce_only(&mut self) {
        self.service = None;
    }

    /// Has the other process go on with what the owner left, if that sleeps: no event for him.
    pub(crate) fn nudge(&self) {
        self.readiness.nudge(self.bit, || {
            if let Some(waker) = &self.service {
                waker.wake();
            }
        });
    }
}
