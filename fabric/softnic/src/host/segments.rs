//! Shared memory of small objects: many of them share a descriptor and a mapping of ours.

use farcall_shm::readiness::LEN_BYTES;
use farcall_shm::{Mutex, Segment, SegmentFile};
use farcall_verbs::Result;

use crate::life::rendezvous::configured_group;

/// Completion queues that share a descriptor, if only processes of our user get it.
const QUEUES_OF_USER: usize = 64;

/// Objects that share a descriptor, at least.
const OF_DESCRIPTOR: usize = 16;

/// Whether only processes of our user get our descriptors: they may do anything to us. A member of a group reaches only
/// the objects that it is granted.
fn only_our_user() -> bool {
    matches!(configured_group(), Ok(None))
}

/// How many completion queues share a descriptor.
pub(crate) fn queues_of_descriptor() -> usize {
    if only_our_user() { QUEUES_OF_USER } else { 1 }
}

/// The memory of one kind of objects of this process.
pub(crate) struct Segments {
    name: &'static str,
    /// Bytes that share a descriptor.
    file_bytes: usize,
    /// Where the next is taken from.
    file: Mutex<Option<SegmentFile>>,
}

impl Segments {
    fn new(name: &'static str, file_bytes: usize) -> Self {
        Self { name, file_bytes, file: Mutex::new(None) }
    }

    /// For completion queues, that peers announce to.
    pub(crate) fn of_queues() -> Self {
        Self::new("farcall-cq", QUEUES_OF_USER * LEN_BYTES.next_multiple_of(rustix::param::page_size()))
    }

    /// For the ways in to queue pairs.
    pub(crate) fn of_pairs() -> Self {
        Self::new("farcall-qp", 1 << 20)
    }

    /// For memory of `alloc_mr`.
    pub(crate) fn of_regions() -> Self {
        Self::new("farcall-mr", 8 << 20)
    }

    /// Zeroed memory for one more of `len_bytes`, of which `used_bytes` are used in any case. What is large has a
    /// descriptor of its own, and is allocated now.
    ///
    /// # Errors
    /// If there is no memory or no descriptor for it.
    pub(crate) fn take(&self, len_bytes: usize, used_bytes: usize) -> Result<Segment> {
        if len_bytes > self.file_bytes / OF_DESCRIPTOR || !only_our_user() {
            return Segment::create(self.name, len_bytes);
        }
        let mut file = self.file.lock();
        if let Some(segment) = file.as_mut().map_or(Ok(None), |file| file.take(len_bytes, used_bytes))? {
            return Ok(segment);
        }
        let (fresh, first) = SegmentFile::begin(self.name, self.file_bytes, len_bytes, used_bytes)?;
        *file = Some(fresh);
        Ok(first)
    }
}
