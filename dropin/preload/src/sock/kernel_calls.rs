//! Counts of threads that are in calls of the kernel's TCP.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use super::{SockRef, Stage};

/// A thread in a call of the kernel's TCP.
pub struct KernelCall<'a>(&'a AtomicU32);

impl<'a> KernelCall<'a> {
    /// Counts one more.
    pub(super) fn new(counter: &'a AtomicU32) -> Self {
        counter.fetch_add(1, SeqCst);
        Self(counter)
    }
}

impl Drop for KernelCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A thread that waits in the kernel for bytes of an unpaired connection.
pub struct KernelWait(SockRef);

impl KernelWait {
    /// Counts one more; `None` if the connection may have bytes in a ring.
    pub fn new(sock: SockRef) -> Option<Self> {
        sock.kernel_receivers.fetch_add(1, SeqCst);
        let wait = Self(sock);
        // Counted first: a thread that switches the connection reads the count, or this one reads its stage.
        (wait.0.stage().is_unpaired() || wait.0.stage() == Stage::Tcp).then_some(wait)
    }
}

impl Drop for KernelWait {
    fn drop(&mut self) {
        self.0.kernel_receivers.fetch_sub(1, SeqCst);
    }
}
