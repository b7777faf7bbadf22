//! Receives of a queue pair.

use std::ops::Range;

use farcall_verbs::{Error, PostError, RecvWr};

use super::QueuePair;
use crate::work_request::receive_wr_id;
use crate::{PostRefused, Receive, ReceiveChain};

/// Number of receives posted per call.
const RECEIVES_AT_ONCE: usize = 16;

impl QueuePair {
    /// Posts `count` receives of no bytes, with tag 0, for messages that only wake.
    ///
    /// # Errors
    /// If the receive queue is full or the provider refuses.
    pub fn post_empty_receives(&mut self, count: u32) -> Result<(), Error> {
        let wrs = [RecvWr::new(receive_wr_id(0), &[]); RECEIVES_AT_ONCE];
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(RECEIVES_AT_ONCE);
            self.post_raw_receives(&wrs[..now]).map_err(|e| *e.source)?;
            left -= now;
        }
        Ok(())
    }

    /// Prepares receives into attached regions.
    ///
    /// # Panics
    /// If a receive names a region that is not attached.
    pub fn receive_chain(&self, receives: &[Receive<'_>]) -> ReceiveChain {
        ReceiveChain::new(receives, &self.regions)
    }

    /// Posts a range of the prepared receives.
    ///
    /// # Errors
    /// If the receive queue is full, if they were prepared for other regions, or if the provider refuses.
    #[inline]
    pub fn post_receives(&mut self, chain: &ReceiveChain, which: Range<usize>) -> Result<(), PostRefused> {
        if !self.regions.are_attached(&chain.regions) {
            return Err(PostRefused::NotAttached { qp_num: self.qp_num() });
        }
        self.receives.with_memory = true;
        // Marked here and not in `receive_chain`, because another queue pair may have prepared the chain.
        self.regions.record_receive_targets(&chain.regions);
        let posted = self.post_raw_receives(&chain.wrs[which]);
        posted.map_err(|source| PostRefused::Post { qp_num: self.qp_num(), source })
    }

    #[inline]
    fn post_raw_receives(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: `RawQp::post_recv` requires that the memory stays valid until the receives complete. The elements
        // name attached regions; `regions` and `deferred` keep them registered until then or until the queue pair is
        // destroyed. The contents of regions are only accessed by atomics and bounded copies.
        let posted = unsafe { self.qp.post_recv(wrs) };
        self.receives.posted += posted.as_ref().map_or_else(|e| e.posted, |()| wrs.len()) as u64;
        posted
    }
}
