//! The memory of completion queues that peers write to: many queues share a descriptor.

use farcall_shm::readiness::LEN_BYTES;
use farcall_shm::{Mutex, SegmentFile, SegmentPage};
use farcall_verbs::Result;

use crate::life::rendezvous::configured_group;

/// Completion queues that share a descriptor, if only processes of our user get it: they may do anything to us.
const QUEUES_OF_USER: usize = 64;

const _: () = assert!(LEN_BYTES <= 4096);

/// How many completion queues share a descriptor. A member of a group reaches only the queues that it is connected to.
pub(crate) fn queues_of_descriptor() -> usize {
    if matches!(configured_group(), Ok(None)) { QUEUES_OF_USER } else { 1 }
}

/// The pages of this process that are still to be given to completion queues.
#[derive(Default)]
pub(crate) struct CqPages(Mutex<Option<SegmentFile>>);

impl CqPages {
    /// A page for one more.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub(crate) fn take(&self) -> Result<SegmentPage> {
        let mut file = self.0.lock();
        if let Some(page) = file.as_mut().map_or(Ok(None), SegmentFile::take)? {
            return Ok(page);
        }
        let fresh = file.insert(SegmentFile::create("farcall-cq", queues_of_descriptor())?);
        Ok(fresh.take()?.expect("a new file has a page"))
    }
}
