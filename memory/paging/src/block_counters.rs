//! Counters of a pager in shared memory: `farcall page status` and `farcall stats` read them.

use farcall_files::Transfer;
use farcall_memory::{LinkStatus, SpaceStatus};
use farcall_stats::{Block, Times};

/// Labels of the counter blocks. Each thread has the first three, followed by its number; the pager has the last one,
/// followed by the process id of its supervisor.
pub const TRANSFERS: &str = "page transfers";
pub const READS: &str = "page reads";
pub const WRITES: &str = "page writes";
pub const REPLICAS: &str = "page replicas";
/// Label of the blocks of the sessions with memory nodes, which maintain their own counters.
pub const SESSIONS: &str = "remio session";

farcall_stats::counters! {
    /// Counters of one thread that serves the kernel.
    pub struct Transfers {
        /// Requests of the kernel to read pages in: as a rule one page.
        reads,
        bytes_read,
        /// Requests to write pages out: as a rule several.
        writes,
        bytes_written,
        /// Requests that ended with an I/O error.
        failures,
    }
}

farcall_stats::counters! {
    /// State of the replicas of the pages.
    pub struct Replicas {
        nodes,
        nodes_up,
        slabs_in_use,
        slabs_degraded,
        slabs_copying,
        slabs_lost,
        pages_wrong,
        pages_repaired,
        pages_lost,
        pages_copied,
        replicas_dropped,
    }
}

/// The counter blocks of one thread.
pub struct ThreadCounters {
    transfers: Block<Transfers>,
    reads: Block<Times>,
    writes: Block<Times>,
}

impl ThreadCounters {
    pub fn new(number: usize) -> Self {
        Self {
            transfers: Block::new(&format!("{TRANSFERS} {number}"), 0),
            reads: Block::new(&format!("{READS} {number}"), 0),
            writes: Block::new(&format!("{WRITES} {number}"), 0),
        }
    }

    pub fn count(&self, transfer: Transfer) {
        let len_bytes = transfer.len_bytes as u64;
        if !transfer.is_done {
            self.transfers.failures.increment();
        } else if transfer.is_write {
            self.transfers.writes.increment();
            self.transfers.bytes_written.add(len_bytes);
            self.writes.count(transfer.time);
        } else {
            self.transfers.reads.increment();
            self.transfers.bytes_read.add(len_bytes);
            self.reads.count(transfer.time);
        }
    }
}

/// Publishes the state of the replicas.
pub fn publish_status(replicas: &Block<Replicas>, status: &SpaceStatus) {
    let up = status.nodes.iter().filter(|node| node.link != LinkStatus::Down).count();
    replicas.nodes.set(status.nodes.len() as u64);
    replicas.nodes_up.set(up as u64);
    replicas.slabs_in_use.set(status.extents as u64);
    replicas.slabs_degraded.set(status.degraded as u64);
    replicas.slabs_copying.set(status.copying as u64);
    replicas.slabs_lost.set(status.lost as u64);
    replicas.pages_wrong.set(status.counts.wrong);
    replicas.pages_repaired.set(status.counts.repaired);
    replicas.pages_lost.set(status.counts.lost);
    replicas.pages_copied.set(status.counts.copied);
    replicas.replicas_dropped.set(status.counts.replicas_dropped);
}
