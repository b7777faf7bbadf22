//! Shared memory of small objects; many objects share one descriptor and one mapping.

use farcall_shm::readiness::LEN_BYTES;
use farcall_shm::{Mutex, Segment, SegmentFile};
use farcall_verbs::Result;

use crate::process::rendezvous::configured_group;

/// Number of completion queues per descriptor if only processes of the same user receive it.
const QUEUES_PER_FILE: usize = 64;

/// Minimum number of objects per descriptor.
const QUEUES_PER_DESCRIPTOR: usize = 16;

/// Returns whether only processes of the same user receive descriptors; they are trusted completely. A member of a
/// group must reach only the objects that it is granted.
fn is_single_user() -> bool {
    matches!(configured_group(), Ok(None))
}

/// Returns the number of completion queues per descriptor.
pub(crate) fn queues_of_descriptor() -> usize {
    if is_single_user() { QUEUES_PER_FILE } else { 1 }
}

/// Shared memory for one kind of object of this process.
pub(crate) struct Segments {
    name: &'static str,
    /// Number of bytes per descriptor.
    file_bytes: usize,
    /// File from which the next object is allocated.
    file: Mutex<Option<SegmentFile>>,
}

impl Segments {
    fn new(name: &'static str, file_bytes: usize) -> Self {
        Self { name, file_bytes, file: Mutex::new(None) }
    }

    /// Creates the memory of completion queues, to which peers announce completions.
    pub(crate) fn of_queues() -> Self {
        Self::new("farcall-cq", QUEUES_PER_FILE * LEN_BYTES.next_multiple_of(rustix::param::page_size()))
    }

    /// Creates the memory of queue pairs' inbound segments.
    pub(crate) fn of_pairs() -> Self {
        Self::new("farcall-qp", 1 << 20)
    }

    /// Creates the memory of `alloc_mr`.
    pub(crate) fn of_regions() -> Self {
        Self::new("farcall-mr", 8 << 20)
    }

    /// Returns zeroed memory of `len_bytes`, of which `used_bytes` are certain to be used. A large object gets a
    /// descriptor of its own and is allocated immediately.
    ///
    /// # Errors
    /// Returns an error if there is no memory or no free descriptor.
    pub(crate) fn allocate(&self, len_bytes: usize, used_bytes: usize) -> Result<Segment> {
        if len_bytes > self.file_bytes / QUEUES_PER_DESCRIPTOR || !is_single_user() {
            return Segment::create(self.name, len_bytes);
        }
        let mut file = self.file.lock();
        if let Some(segment) = file.as_mut().map_or(Ok(None), |file| file.allocate(len_bytes, used_bytes))? {
            return Ok(segment);
        }
        let (new_file, first) = SegmentFile::begin(self.name, self.file_bytes, len_bytes, used_bytes)?;
        *file = Some(new_file);
        Ok(first)
    }
}
