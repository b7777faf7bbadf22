//! Threads that are inside of the kernel's TCP with a connection.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use super::{SockRef, Stage};

/// A thread inside of the kernel's TCP.
pub struct InKernel<'a>(&'a AtomicU32);

impl<'a> InKernel<'a> {
    /// Counts one more.
    pub(super) fn new(counter: &'a AtomicU32) -> Self {
        counter.fetch_add(1, SeqCst);
        Self(counter)
    }
}

impl Drop for InKernel<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A thread that waits in the kernel for bytes of a connection whose ends have not met.
pub struct KernelWait(SockRef);

impl KernelWait {
    /// Counts one more; `None` if the kernel's readiness is not all there is.
    pub fn new(sock: SockRef) -> Option<Self> {
        sock.kernel_receivers.fetch_add(1, SeqCst);
        let wait = Self(sock);
        // Counted first: a thread that turns the connection sees the count, or this one sees its stage.
        (wait.0.stage().is_unmet() || wait.0.stage() == Stage::Tcp).then_some(wait)
    }
}

impl Drop for KernelWait {
    fn drop(&mut self) {
        self.0.kernel_receivers.fetch_sub(1, SeqCst);
    }
}
