//! State of an address space in the statistics of its process, shown by `farcall stats` and `--metrics`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall_stats::Block;
use farcall_verbs::Nanos;

use super::config::{LinkStatus, SpaceStatus};

/// Minimum interval between two updates: an update visits every slab.
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);

farcall_stats::counters! {
    /// State of an address space, and counts of its client.
    struct SpaceCounters {
        /// Memory nodes known to the client.
        nodes,
        /// Memory nodes with which it has a session.
        nodes_up,
        /// Slabs that were written to.
        slabs_in_use,
        /// Slabs with fewer in-sync replicas than configured.
        slabs_degraded,
        /// Slabs with a replica that is being created.
        slabs_copying,
        /// Slabs without a replica: reading them fails.
        slabs_lost,
        /// Pages read for requests.
        pages_read,
        /// Pages written for requests.
        pages_written,
        /// Pages of replicas whose bytes were wrong.
        pages_wrong,
        /// Pages of replicas that were repaired.
        pages_repaired,
        /// Requests for pages that no replica has.
        pages_lost,
        /// Pages copied to new replicas.
        pages_copied,
        /// Pages of which scrubs have read all replicas.
        pages_scrubbed,
        /// Replicas that were dropped.
        replicas_dropped,
    }
}

/// The published state of one address space.
pub(super) struct PublishedStatus {
    counters: Block<SpaceCounters>,
    next_update_at: Nanos,
}

impl PublishedStatus {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { counters: Block::new(&format!("memory client {number}"), 0), next_update_at: Nanos(0) }
    }

    /// Publishes the state if [`UPDATE_INTERVAL`] has passed since the last update.
    pub fn update(&mut self, now: Nanos, status: impl FnOnce() -> SpaceStatus) {
        if now < self.next_update_at {
            return;
        }
        self.next_update_at = now + UPDATE_INTERVAL;
        let (status, counters) = (status(), &self.counters);
        let is_up = |link: LinkStatus| link != LinkStatus::Down;
        counters.nodes.set(status.nodes.len() as u64);
        counters.nodes_up.set(status.nodes.iter().filter(|node| is_up(node.link)).count() as u64);
        counters.slabs_in_use.set(status.extents as u64);
        counters.slabs_degraded.set(status.degraded as u64);
        counters.slabs_copying.set(status.copying as u64);
        counters.slabs_lost.set(status.lost as u64);
        counters.pages_read.set(status.counts.pages_read);
        counters.pages_written.set(status.counts.pages_written);
        counters.pages_wrong.set(status.counts.wrong);
        counters.pages_repaired.set(status.counts.repaired);
        counters.pages_lost.set(status.counts.lost);
        counters.pages_copied.set(status.counts.copied);
        counters.pages_scrubbed.set(status.counts.scrubbed);
        counters.replicas_dropped.set(status.counts.replicas_dropped);
    }
}
