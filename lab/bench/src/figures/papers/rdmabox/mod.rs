//! C: RDMAbox, optimizations for remote paging and a remote file system.

mod figure_1;
mod figure_10;
mod figure_11;
mod figure_12;
mod figure_2;
mod figure_5;
mod figure_6;
mod figure_7;
mod figure_8;
mod figure_9;
mod findings;
mod table_1;

pub(super) use findings::findings;

use crate::figures::experiment::{Experiment, Paper};
use crate::figures::trial::Trial;
use crate::remio::{Combining, LocalMemory, Places, RemioTask, Sample, VerbsTask, Workload};

const PAPER: Paper = Paper {
    letter: 'C',
    title: "RDMAbox: Optimizing RDMA for Memory Intensive Workloads",
    setup: "Cloudlab nodes with Xeon E5-2650 v2 (2.6 GHz, 32 virtual cores), 64 GB and ConnectX-3; kernel-space \
            clients but where user space is named.",
};

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[&Experiment] = &[
    &figure_1::IOPS,
    &figure_1::IN_FLIGHT,
    &figure_1::COMPLETION,
    &figure_2::THROUGHPUT,
    &figure_2::EVENTS,
    &figure_2::SWITCHES,
    &figure_5::EXPERIMENT,
    &figure_6::EXPERIMENT,
    &table_1::EXPERIMENT,
    &figure_7::EXPERIMENT,
    &figure_8::IOPS,
    &figure_8::IN_FLIGHT,
    &figure_8::COMPLETION,
    &figure_9::THROUGHPUT,
    &figure_9::CPU,
    &figure_10::SQLITE,
    &figure_10::SQLITE_TAIL,
    &figure_10::REDIS,
    &figure_10::REDIS_TAIL,
    &figure_11::LOGISTIC_REGRESSION,
    &figure_11::GRADIENT_BOOSTING,
    &figure_11::K_MEANS,
    &figure_11::TEXT_RANK,
    &figure_12::WRITE,
    &figure_12::READ,
];

/// Differences of all experiments from the paper's.
const DIFFERS: &str = "Requests of 4 KiB of a user-space process to the memory of another one, which \
                       sleeps; each thread submits a burst, then waits for it. Every byte is checked, and that is \
                       in the figures.";
/// Differences of all experiments with paged programs.
const PAGED_DIFFERS: &str = "Paging by farcall page: the kernel swaps to a loop device over FUSE, one memory node on \
                             this host, one replica. No Accelio, and no paging over plain verbs: beside it a swap \
                             file on this host’s disk and zram, with the same limit of a cgroup, a part of the most \
                             memory that the program has.";
/// Name of the limit: one thread that posts and polls itself.
const BARE: &str = "limit: bare verbs, one thread";

/// Facebook's ETC and SYS as the paper pages them: of six queued requests two are adjacent.
const ETC: Workload = Workload { name: "ETC 95/5", places: Places::TwoOfSix, reads_percent: 95 };
const SYS: Workload = Workload { name: "SYS 75/25", places: Places::TwoOfSix, reads_percent: 75 };

/// Curves of the paper's comparisons of batching. The paper's dynMR registers the memory of every request and gathers
/// it. Here, memory that is gathered was registered before.
const BATCHING: [(&str, Combining, LocalMemory); 7] = [
    (SINGLE_PRE, Combining::Single, LocalMemory::Copied),
    (MERGE_PRE, Combining::Merge, LocalMemory::Copied),
    ("Hybrid preMR", Combining::MergeAndChain, LocalMemory::Copied),
    (SINGLE_DYN, Combining::Single, LocalMemory::RegisteredOnce),
    (MERGE_DYN, Combining::Merge, LocalMemory::RegisteredOnce),
    (DOORBELL_DYN, Combining::Doorbell, LocalMemory::RegisteredOnce),
    (HYBRID_DYN, Combining::MergeAndChain, LocalMemory::RegisteredOnce),
];
const SINGLE_PRE: &str = "Single preMR";
const MERGE_PRE: &str = "Merge preMR";
const SINGLE_DYN: &str = "Single dynMR";
const MERGE_DYN: &str = "Merge dynMR";
const DOORBELL_DYN: &str = "Doorbell dynMR";
const HYBRID_DYN: &str = "Hybrid dynMR";
const BATCHING_DIFFERS: &str = "No database and no paging: bursts of 30 requests of one thread that stack up, of \
                                six of them two adjacent, which gives the paper’s 0.83 work requests. Merging and \
                                chaining with dynMR: of memory that is registered once and gathered, since \
                                requests whose memory is registered one by one go alone here.";

/// Returns trials of bursts that are held back until they are complete, with every batching strategy.
fn batching(loads: &[(f64, Workload)], y: fn(&Sample) -> f64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (x, workload) in loads {
        for (series, combining, memory) in BATCHING {
            let task = RemioTask { memory, burst: 30, ..RemioTask::of(*workload, combining).stacked() };
            trials.push(Trial::remio(series, *x, task, y));
        }
    }
    trials
}

/// Returns a task of plain verbs.
fn bare(workload: Workload, window: u32) -> VerbsTask {
    let RemioTask { len_bytes, region_bytes, .. } = RemioTask::of(workload, Combining::Single);
    VerbsTask { workload, window, len_bytes, region_bytes }
}
