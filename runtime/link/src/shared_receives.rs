//! Receives that several queue pairs share.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_verbs::{Error, RawSrq, SrqInitAttr};

use crate::work_request::Regions;
use crate::{Nic, PostRefused, Receive, ReceiveChain, Region, RegionId};

/// The regions of shared receives: pairs keep them, because receives outlive the queue as long as a pair uses it.
pub(crate) type SharedRegions = Arc<Mutex<Vec<Arc<Region>>>>;

/// A shared receive queue with the regions that its receives name.
pub struct SharedReceives {
    srq: Box<dyn RawSrq>,
    regions: Regions,
    kept: SharedRegions,
}

impl SharedReceives {
    /// Makes a queue of up to `depth` receives of one piece.
    ///
    /// # Errors
    /// If it is not offered or a limit is exceeded.
    pub fn new(nic: &Nic, depth: u32) -> Result<Self, Error> {
        let srq = nic.pd.create_srq(&SrqInitAttr { max_wr: depth, max_sge: 1 })?;
        Ok(Self { srq, regions: Regions::default(), kept: SharedRegions::default() })
    }

    /// Keeps a region as long as this queue and every pair that uses it, and makes it postable.
    pub fn attach(&mut self, region: Arc<Region>) -> RegionId {
        // A list of regions is whole at every instruction: a panic elsewhere does not spoil it.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&region));
        self.regions.attach(region)
    }

    /// Prepares receives into attached regions.
    ///
    /// # Panics
    /// If one names what is not attached.
    pub fn receive_chain(&self, receives: &[Receive<'_>]) -> ReceiveChain {
        ReceiveChain::new(receives, &self.regions)
    }

    /// Posts some of the prepared receives.
    ///
    /// # Errors
    /// If the queue is full, they were prepared over other regions, or the device refuses.
    #[inline]
    pub fn post_receives(&mut self, chain: &ReceiveChain, which: Range<usize>) -> Result<(), PostRefused> {
        if !self.regions.hold(&chain.regions) {
            return Err(PostRefused::NotAttached { qp_num: 0 });
        }
        // SAFETY: the elements name pieces of attached regions, which stay mapped as long as this queue or a pair that
        // takes its receives; memory of regions is only read by atomics and bounded copies.
        unsafe { self.srq.post_recv(&chain.wrs[which]) }
            .map_err(|source| PostRefused::Post { qp_num: 0, source })
    }

    pub(crate) fn raw(&self) -> &dyn RawSrq {
        &*self.srq
    }

    pub(crate) fn regions(&self) -> SharedRegions {
        Arc::clone(&self.kept)
    }
}
