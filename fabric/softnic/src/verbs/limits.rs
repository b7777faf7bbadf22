//! Limits on the number of objects, derived from the limits on the process's descriptors and mappings.

use std::sync::LazyLock;

use rustix::process::{Resource, getrlimit};

use crate::shm_transport::segments::queues_of_descriptor;

/// Number of descriptors left for everything else that a program opens.
const OTHER_DESCRIPTORS: u64 = 256;

/// Number of mappings left for everything else.
const OTHER_MAPPINGS: u64 = 4096;

/// Number of mappings of a queue pair whose peer is another process: its ring, the peer's ring, and a completion queue
/// of the peer for each of them.
const MAPPINGS_OF_QP: u64 = 4;

/// Maximum number of protection domains.
pub(super) const PD_MAX: u32 = 1 << 16;
/// Maximum number of address handles.
pub(super) const AH_MAX: u32 = 1 << 16;
/// Maximum number of shared receive queues.
pub(super) const SRQ_MAX: u32 = 1 << 14;

/// Returns the maximum number of queue pairs. Each uses a descriptor if its ring is long, otherwise a part of one.
pub(in crate::verbs) fn qp_max() -> u32 {
    /// Read once, because each new queue pair is checked against it.
    static MAPPINGS: LazyLock<u64> = LazyLock::new(|| {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
    });
    at_most(1 << 20, descriptors().min(MAPPINGS.saturating_sub(OTHER_MAPPINGS) / MAPPINGS_OF_QP))
}

/// Returns the maximum number of completion queues.
pub(super) fn cq_max() -> u32 {
    at_most(1 << 16, descriptors().saturating_mul(queues_of_descriptor() as u64))
}

fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OTHER_DESCRIPTORS)
}

fn at_most(most: u32, count: u64) -> u32 {
    most.min(u32::try_from(count).unwrap_or(u32::MAX)).max(1)
}
