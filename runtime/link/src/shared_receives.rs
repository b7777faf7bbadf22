//! Receives shared by several queue pairs.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_verbs::{Error, RawSrq, SrqInitAttr};

use crate::work_request::Regions;
use crate::{Nic, PostRefused, Receive, ReceiveChain, Region, RegionId};

/// The regions of shared receives. Queue pairs keep them, because receives outlive the queue as long as a queue pair
/// uses them.
pub(crate) type SharedRegions = Arc<Mutex<Vec<Arc<Region>>>>;

/// A shared receive queue with the regions that its receives name.
pub struct SharedReceives {
    srq: Box<dyn RawSrq>,
    regions: Regions,
    retained: SharedRegions,
}

impl SharedReceives {
    /// Creates a queue of up to `depth` receives with one SGE each.
    ///
    /// # Errors
    /// If the provider does not offer shared receive queues, or a limit is exceeded.
    pub fn new(nic: &Nic, depth: u32) -> Result<Self, Error> {
        let srq = nic.pd().create_srq(&SrqInitAttr { max_wr: depth, max_sge: 1 })?;
        Ok(Self { srq, regions: Regions::default(), retained: SharedRegions::default() })
    }

    /// Makes a region usable by receives of this queue, and keeps it as long as the queue and every queue pair that
    /// uses it.
    pub fn attach(&mut self, region: Arc<Region>) -> RegionId {
        // A list of regions is consistent at every instruction, so a panic elsewhere does not corrupt it.
        self.retained.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&region));
        self.regions.attach(region)
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
    /// If the queue is full, if they were prepared for other regions, or if the provider refuses.
    #[inline]
    pub fn post_receives(&mut self, chain: &ReceiveChain, which: Range<usize>) -> Result<(), PostRefused> {
        if !self.regions.are_attached(&chain.regions) {
            return Err(PostRefused::NotAttached { qp_num: 0 });
        }
        // SAFETY: `RawSrq::post_recv` requires that the memory stays valid until the receives complete. The elements
        // name attached regions, which `retained` holds as long as this queue or a queue pair that uses it exists. The
        // contents of regions are only accessed by atomics and bounded copies.
        unsafe { self.srq.post_recv(&chain.wrs[which]) }
            .map_err(|source| PostRefused::Post { qp_num: 0, source })
    }

    pub(crate) fn raw(&self) -> &dyn RawSrq {
        &*self.srq
    }

    pub(crate) fn regions(&self) -> SharedRegions {
        Arc::clone(&self.retained)
    }
}
