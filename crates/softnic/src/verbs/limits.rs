//! How many objects there can be: each queue pair, completion queue and channel holds a descriptor of the process.

use rustix::process::{Resource, getrlimit};

/// Descriptors for everything else that a program opens.
const OTHER_DESCRIPTORS: u64 = 256;

/// How many objects that hold a descriptor there can be, of a kind of which the device has at most `most`.
pub(super) fn objects_max(most: u32) -> u32 {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    most.min(u32::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(u32::MAX)).max(1)
}
