//! C: RDMAbox, optimizations for remote paging and a remote file system.

mod findings;
mod programs;

use crate::figures::experiment::{Axis, Experiment, Paper, published};
use crate::figures::sample::Sample;
use crate::figures::trial::{Trial, sweep_beside};
use crate::remio::{self, Combining, LocalMemory, Places, Polling, RemioTask, VerbsTask, Workload};
pub(super) use findings::FINDINGS;
pub(super) use programs::EXPERIMENTS as PROGRAMS;

pub(super) const PAPER: Paper = Paper {
    letter: 'C',
    title: "RDMAbox: Optimizing RDMA for Memory Intensive Workloads",
    setup: "Cloudlab nodes with Xeon E5-2650 v2 (2.6 GHz, 32 virtual cores), 64 GB and ConnectX-3; kernel-space \
            clients but where user space is named.",
    file: file!(),
};

/// Experiment without content, for struct updates.
const BLANK: Experiment = Experiment::of(&PAPER);

/// Single I/O by an increasing number of threads.
const FIGURE_1: Experiment = Experiment {
    place: "figure 1, section 3-A",
    x: Axis::linear("threads", ""),
    statements: &[
        "IOPS peak at 4 threads and drop with more; what is in flight and the completion time go on growing: the NIC \
         is the bottleneck.",
    ],
    conditions: "RDMA WRITEs of 1 to 16 threads, one client and one server behind one switch, one queue pair.",
    differs: &[
        DIFFERS,
        "What a software RNIC is asked for it does in the thread that asks: more threads than cores queue for cores, \
         not in a NIC.",
    ],
    ..BLANK
};

/// Wait strategies for completions under small, medium and large bursts.
const FIGURE_2: Experiment = Experiment {
    place: "figure 2, section 3-B",
    x: Axis::logarithmic("requests in a burst", ""),
    statements: &[
        "Adaptive Polling has the highest throughput under every load, and fewer interrupts and context switches than \
         Event-Batch, which has most, and Hybrid under small and medium bursts.",
    ],
    conditions: "Small: one request at a time. Large: the smallest burst at which busy polling is fastest. Medium: \
                 half way between. MAX_RETRY is 120.",
    differs: &[
        DIFFERS,
        "One thread submits, another looks for completions on another core. Bursts of 1, 8 and 64. Hybrid looks 1,000 \
         times after an event before it sleeps, the paper’s until nothing comes.",
    ],
    ..BLANK
};

/// The load of figure 1 with several queue pairs, with and without admission control.
const FIGURE_8: Experiment = Experiment {
    place: "figure 8, section 5-A",
    x: Axis::linear("threads", ""),
    statements: &[
        "With four queue pairs IOPS peak at 7 threads. A window of about 7 MB, what is in flight at the peak, keeps \
         the bytes in flight stable; the peak is 29.9 % higher.",
    ],
    conditions: "As in figure 1 with four queue pairs, in the paging system.",
    differs: &[
        DIFFERS,
        "Three quarters READs, one quarter WRITEs, of pages of which no two are adjacent, merged and chained in both; \
         a window of 128 KiB.",
    ],
    ..BLANK
};

/// Wait strategies for completions by number of peers.
const FIGURE_9: Experiment = Experiment {
    place: "figure 9, section 5-B",
    x: Axis::logarithmic("peers", ""),
    statements: &[
        "N busy polling threads are best with few peers; with more than four their processor time costs throughput.",
        "One shared completion queue is worse than events from 8 peers on, and more shared ones help little.",
        "Adaptive Polling has a higher throughput than shared queues with many peers, for little more processor time \
         than events.",
    ],
    conditions: "VoltDB under SYS over remote paging, single I/O with preMR, one queue pair and completion queue for \
                 each peer, or M shared ones: SCQ(M). 32 virtual cores.",
    differs: &[
        DIFFERS,
        "No database: two threads with bursts of 8, three quarters READs, the peers in turn. Two cores, so that two \
         busy threads are already too many. Up to 8 peers, each a process.",
    ],
    ..BLANK
};

/// Experiments with the engine alone, in the paper's order; those with programs follow in [`PROGRAMS`].
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "C.1a",
        title: "Single I/O by threads: IOPS",
        y: Axis::linear("requests", "thousand/s"),
        trials: || single(Sample::kops),
        ..FIGURE_1
    },
    Experiment {
        id: "C.1b",
        title: "Single I/O by threads: what is in flight",
        y: Axis::linear("in flight", "KiB"),
        trials: || single(in_flight_kib),
        ..FIGURE_1
    },
    Experiment {
        id: "C.1c",
        title: "Single I/O by threads: completion time",
        y: Axis::linear("median completion time", "µs"),
        trials: || single(Sample::p50_us),
        ..FIGURE_1
    },
    Experiment {
        id: "C.2a",
        title: "Ways to wait by bursts: throughput",
        y: Axis::linear("requests", "thousand/s"),
        trials: || by_bursts(Sample::kops),
        ..FIGURE_2
    },
    Experiment {
        id: "C.2c",
        title: "Ways to wait by bursts: events asked for, where the paper counts interrupts",
        y: Axis::linear("events", "for each request"),
        trials: || by_bursts(|sample| sample.remio(|it| it.per_request(it.polls.sleeps))),
        ..FIGURE_2
    },
    Experiment {
        id: "C.2d",
        title: "Wait strategies by bursts: context switches of the waiting thread",
        y: Axis::linear("context switches", "for each request"),
        trials: || by_bursts(|sample| sample.remio(|it| it.per_request(it.switches))),
        ..FIGURE_2
    },
    Experiment {
        id: "C.5b",
        place: "figure 5b, section 4-A",
        title: "Registration against copy by size",
        x: Axis::logarithmic("request", "B"),
        y: Axis::logarithmic("median completion time", "µs"),
        statements: &[
            "In user space copying is cheaper up to 928 KB, registering from there on; in kernel space registering is \
             always.",
        ],
        conditions: "Resident pages. Only the cost of registering or copying, in kernel space (5a) and user space \
                     (5b).",
        differs: &[
            DIFFERS,
            "User space alone. WRITEs as a whole, one at a time, so the copy to the peer is in both; what a request \
             costs beyond that is the difference. The software RNIC pins nothing: registering costs it system calls, \
             not tables in a NIC.",
        ],
        trials: || {
            let usual = RemioTask {
                polling: Polling::Inline,
                threads: 1,
                burst: 1,
                region_bytes: 32 << 20,
                ..RemioTask::of(Workload::RANDOM_WRITES, Combining::Single)
            };
            let curves = [(COPIED, LocalMemory::Copied), (REGISTERED, LocalMemory::RegisteredEach)];
            sweep_beside([], &LENS_BYTES, &curves, Sample::p50_us, |len_bytes, memory| RemioTask {
                len_bytes,
                memory,
                ..usual
            })
        },
        ..BLANK
    },
    Experiment {
        id: "C.6",
        place: "figure 6, section 5-A",
        title: "Ways of batching: throughput under ETC and SYS",
        x: Axis::linear("0: ETC; 1: SYS", ""),
        y: Axis::linear("requests", "thousand/s"),
        statements: &[
            "Merging is 23.6 to 24.4 % better than single I/O with preMR, 11.2 to 11.5 % with dynMR, under both loads.",
            "Hybrid is 22.2 to 47.7 % better than single I/O under ETC, 15.7 to 40.5 % under SYS, with preMR and \
             dynMR; than doorbells alone 10.8 to 22.2 % and 7.5 to 13.4 %.",
        ],
        conditions: "VoltDB with 20 GB over remote paging, a quarter of it resident; blocks of 128 KB; one to one.",
        differs: &[DIFFERS, BATCHING_DIFFERS],
        trials: || batching([(0.0, ETC), (1.0, SYS)], Sample::kops),
        ..BLANK
    },
    Experiment {
        id: "C.table-1",
        place: "table I, section 5-A",
        title: "Work requests for each request, by ways of batching",
        x: Axis::linear("0: READs; 1: WRITEs", ""),
        y: Axis::linear("work requests", "for each request"),
        published: &[
            published(SINGLE_PRE, &[(Some(0.0), 1.0), (Some(1.0), 1.0)], OF_SINGLE),
            published(MERGE_PRE, &[(Some(0.0), 0.871), (Some(1.0), 0.883)], OF_SINGLE),
            published(MERGE_DYN, &[(Some(0.0), 0.833), (Some(1.0), 0.925)], OF_SINGLE),
            published(DOORBELL_DYN, &[(Some(0.0), 1.0), (Some(1.0), 1.007)], OF_SINGLE),
            published(HYBRID_DYN, &[(Some(0.0), 0.833), (Some(1.0), 0.918)], OF_SINGLE),
        ],
        statements: &[
            "In numbers, READs and WRITEs: Single preMR 13.2 million and 308,000, Merge preMR 11.5 million and \
             272,000, Single dynMR 13.2 million and 305,000, Merge dynMR 11 million and 282,000, Doorbell dynMR 13.2 \
             million and 307,000, Hybrid dynMR 11 million and 280,000.",
            "Chaining saves no work request: Hybrid has as many as merging.",
        ],
        conditions: "VoltDB under ETC over remote paging, as in figure 6.",
        differs: &[DIFFERS, BATCHING_DIFFERS],
        trials: || {
            let writes = Workload { name: "table-1, writes", places: Places::TwoOfSix, reads_percent: 0 };
            let y = |sample: &Sample| sample.remio(remio::Sample::work_per_request);
            batching([(0.0, Workload::TABLE_1), (1.0, writes)], y)
        },
        ..BLANK
    },
    Experiment {
        id: "C.7",
        place: "figure 7, section 5-A",
        title: "Ways of batching: 99th percentile under ETC and SYS",
        x: Axis::linear("0: ETC; 1: SYS", ""),
        y: Axis::linear("completion time, 99th percentile", "µs"),
        statements: &["Merging and chaining have no negative effect on the tail."],
        conditions: "As in figure 6; the latency of the database.",
        differs: &[DIFFERS, BATCHING_DIFFERS, "The completion time of a request."],
        trials: || batching([(0.0, ETC), (1.0, SYS)], Sample::p99_us),
        ..BLANK
    },
    Experiment {
        id: "C.8a",
        title: "Admission control by threads: IOPS",
        y: Axis::linear("requests", "thousand/s"),
        trials: || admitted(Sample::kops),
        ..FIGURE_8
    },
    Experiment {
        id: "C.8b",
        title: "Admission control by threads: what is in flight",
        y: Axis::linear("in flight", "KiB"),
        trials: || admitted(in_flight_kib),
        ..FIGURE_8
    },
    Experiment {
        id: "C.8c",
        title: "Admission control by threads: completion time",
        y: Axis::linear("median completion time", "µs"),
        trials: || admitted(Sample::p50_us),
        ..FIGURE_8
    },
    Experiment {
        id: "C.9a",
        title: "Ways to wait by peers: throughput",
        y: Axis::linear("requests", "thousand/s"),
        trials: || by_peers(Sample::kops),
        ..FIGURE_9
    },
    Experiment {
        id: "C.9b",
        title: "Ways to wait by peers: processor time",
        y: Axis::linear("processor time", "cores"),
        trials: || by_peers(|sample| sample.remio(|it| it.cpu_us_per_request * it.per_second / 1e6)),
        ..FIGURE_9
    },
];

/// Names of curves.
const COPIED: &str = "Memcpy";
const REGISTERED: &str = "MR registration";
const ADAPTIVE: &str = "Adaptive Polling";
const WITHOUT: &str = "without admission control";
const WITH: &str = "with admission control";
/// Strategies with which Adaptive Polling is compared.
const OTHERS: [&str; 2] = ["Event-Batch", "Hybrid"];
/// Numbers of requests per burst.
const BURSTS: [u32; 3] = [1, 8, 64];
/// Numbers of submitting threads.
const THREADS: [u32; 6] = [1, 2, 4, 7, 10, 16];
/// Lengths of a request that is copied or registered, in bytes.
const LENS_BYTES: [usize; 7] = [4 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Location of the published numbers of work requests.
const OF_SINGLE: &str = "table I: over the number of Single with the same memory";

/// Differences of all experiments from the paper's.
const DIFFERS: &str = "Requests of 4 KiB of a user-space process to the memory of another one, which sleeps; each \
                       thread submits a burst, then waits for it. Every byte is checked, and that is in the figures.";
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
const BATCHING_DIFFERS: &str = "No database and no paging: bursts of 30 requests of one thread that stack up, of six \
                                of them two adjacent, which gives the paper’s 0.83 work requests. Merging and \
                                chaining with dynMR: of memory that is registered once and gathered, since requests \
                                whose memory is registered one by one go alone here.";

/// Returns trials of bursts that are held back until they are complete, with every batching strategy.
fn batching(loads: [(f64, Workload); 2], y: fn(&Sample) -> f64) -> Vec<Trial> {
    let curves = BATCHING.map(|(series, combining, memory)| (series, (combining, memory)));
    sweep_beside([], &loads, &curves, y, |(_, workload), (combining, memory)| RemioTask {
        memory,
        burst: 30,
        ..RemioTask::of(workload, combining).stacked()
    })
}

/// Returns the limit: plain verbs with `window` outstanding requests.
fn bare(workload: Workload, window: u32, y: fn(&Sample) -> f64) -> [Trial; 1] {
    let RemioTask { len_bytes, region_bytes, .. } = RemioTask::of(workload, Combining::Single);
    [Trial::at(BARE, 1.0, VerbsTask { workload, window, len_bytes, region_bytes }, y)]
}

fn in_flight_kib(sample: &Sample) -> f64 {
    sample.remio(remio::Sample::in_flight_kib)
}

fn single(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let workload = Workload::RANDOM_WRITES;
    let usual = RemioTask { connections: 1, burst: 8, ..RemioTask::of(workload, Combining::Single) };
    let curve = [("single I/O, one queue pair", ())];
    sweep_beside(bare(workload, usual.burst, y), &THREADS, &curve, y, |threads, ()| RemioTask {
        threads,
        ..usual
    })
}

fn by_bursts(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let curves = [
        (ADAPTIVE, Polling::Adaptive),
        (OTHERS[0], Polling::EventBatch),
        (OTHERS[1], Polling::NaiveHybrid),
        ("Event", Polling::Event),
        ("Busy", Polling::Busy),
    ];
    let usual = RemioTask { threads: 1, ..RemioTask::of(Workload::RANDOM_WRITES, Combining::Single) };
    sweep_beside([], &BURSTS, &curves, y, |burst, polling| RemioTask { burst, polling, ..usual })
}

fn admitted(y: fn(&Sample) -> f64) -> Vec<Trial> {
    // A quarter of the bytes that 16 threads would have in flight. The paper's 7 MB would never hold back a request
    // here.
    let curves = [(WITHOUT, None), (WITH, Some(128 << 10))];
    let usual = RemioTask { burst: 8, ..RemioTask::of(Workload::MIXED, Combining::MergeAndChain) };
    let limit = bare(Workload::MIXED, usual.burst, y);
    sweep_beside(limit, &THREADS, &curves, y, |threads, window_bytes| RemioTask {
        threads,
        window_bytes,
        ..usual
    })
}

fn by_peers(y: fn(&Sample) -> f64) -> Vec<Trial> {
    // Number of completion queues: one for each peer, or a fixed number of shared ones.
    let curves = [
        ("Event", (Polling::Event, u32::MAX)),
        ("Busy", (Polling::Busy, u32::MAX)),
        ("EventBatch", (Polling::EventBatch, u32::MAX)),
        ("SCQ(1)", (Polling::Busy, 1)),
        ("SCQ(2)", (Polling::Busy, 2)),
        ("AdaptivePoll", (Polling::Adaptive, u32::MAX)),
    ];
    let usual = RemioTask {
        burst: 8,
        connections: 1,
        region_bytes: 4 << 20,
        ..RemioTask::of(Workload::MIXED, Combining::Single)
    };
    sweep_beside([], &[1, 2, 4, 8], &curves, y, |peers, (polling, shared)| RemioTask {
        peers,
        pollers: shared.min(peers),
        polling,
        ..usual
    })
}
