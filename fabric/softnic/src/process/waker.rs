//! An event descriptor of this process, or one of a peer to which this process may write.

use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farcall_shm::fork::DontForkFd;
use farcall_verbs::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use super::interned::{KernelObjectId, intern};

pub(crate) struct Waker(DontForkFd);

impl Waker {
    pub(crate) fn create() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Self(DontForkFd::new(fd)))
            .map_err(|e| Error::os("eventfd", "create an event descriptor (check RLIMIT_NOFILE)", e))
    }

    /// Creates it from a peer's descriptor. Many queue pairs of the peer wake the same thread, and share one
    /// descriptor.
    pub(crate) fn from_peer_fd(fd: OwnedFd) -> Arc<Self> {
        let number = eventfd_number(&fd);
        let make = || Arc::new(Self(DontForkFd::new(fd)));
        let Some(number) = number else { return make() };
        let Ok(waker) = intern(KernelObjectId::Event(number), || Ok::<_, Infallible>(make()));
        waker
    }

    /// Makes the descriptor readable. If the counter is full, the descriptor is readable already.
    pub(crate) fn wake(&self) {
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the kernel's number of the event object, which is equal for all its descriptors while one exists. Returns
/// `None` if it is no event descriptor, or if the kernel does not report the number (before 5.2, or without /proc).
fn eventfd_number(fd: &OwnedFd) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("eventfd-id:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_one_event_are_one_waker() {
        let (one, other) = (Waker::create().unwrap(), Waker::create().unwrap());
        let copy = |waker: &Waker| waker.fd().try_clone_to_owned().unwrap();
        let first = Waker::from_peer_fd(copy(&one));
        assert!(Arc::ptr_eq(&first, &Waker::from_peer_fd(copy(&one))));
        assert!(!Arc::ptr_eq(&first, &Waker::from_peer_fd(copy(&other))));
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert!(eventfd_number(&file).is_none());
    }
}
