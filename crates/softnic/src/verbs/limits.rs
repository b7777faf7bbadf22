//! How many objects there can be: descriptors and mappings of the process are what they cost first.

use rustix::process::{Resource, getrlimit};

use crate::host::segments::queues_of_descriptor;

/// Descriptors for everything else that a program opens.
const OTHER_DESCRIPTORS: u64 = 256;

/// Mappings for everything else.
const OTHER_MAPPINGS: u64 = 4096;

/// Mappings of a queue pair whose peer is another process: its ring and the peer's, and a completion queue of the peer
/// for each of them.
const MAPPINGS_OF_QP: u64 = 4;

/// Queue pairs: each holds a descriptor if its ring is long, and a part of one otherwise.
pub(super) fn qp_max() -> u32 {
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let mappings = mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530_u64);
    at_most(1 << 20, descriptors().min(mappings.saturating_sub(OTHER_MAPPINGS) / MAPPINGS_OF_QP))
}

/// Completion queues.
pub(super) fn cq_max() -> u32 {
    at_most(1 << 16, descriptors().saturating_mul(queues_of_descriptor() as u64))
}

fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OTHER_DESCRIPTORS)
}

fn at_most(most: u32, count: u64) -> u32 {
    most.min(u32::try_from(count).unwrap_or(u32::MAX)).max(1)
}
