//! C: RDMAbox; experiments with databases, machine learning and a file system.

use super::BLANK;
use crate::experiments::subject::Rival;
use crate::figures::experiment::{Axis, Experiment};
use crate::figures::sample::Sample;
use crate::figures::trial::{Trial, sweep_beside};
use crate::files::{FilesTask, Pass, Place};
use crate::paged::{Algorithm, Backing, Database, DatabaseTask, LearningTask, Mix, Resident};
use crate::remio::{Combining, RemioTask, Workload};
use crate::ucx::UcxTest;

/// Differences of all experiments with paged programs.
const PAGED_DIFFERS: &str = "Paging by farcall page: the kernel swaps to a loop device over FUSE, one memory node on \
                             this host, one replica. No Accelio, and no paging over plain verbs: beside it a swap \
                             file on this host’s disk and zram, with the same limit of a cgroup, a part of the most \
                             memory that the program has.";
/// Bytes of one work request.
const PAGE_BYTES: u32 = 4096;
pub(super) const RECORDS_BYTES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
pub(super) const MERGED: &str = "engine alone, merged and chained";
pub(super) const SINGLE: &str = "engine alone, single I/O";
const THROUGHPUT: Axis = Axis::logarithmic("operations", "thousand/s");
const TAIL: Axis = Axis::logarithmic("latency, 99th percentile", "µs");

/// Databases over remote paging: a panel for throughput and one for tail latency of each database.
const FIGURE_10: Experiment = Experiment {
    place: "figure 10, section 6-A",
    x: Axis::linear("resident", "%"),
    statements: &[
        "Up to 3.87 times Accelio’s throughput of MongoDB, 4.01 of VoltDB, 2.73 of Redis; up to 7.52, 6.6 and 4.72 \
         times that over plain verbs.",
        "The average latency is up to 5.24 times as long over Accelio, 6.47 over verbs; the 99th percentile 45 and 68 \
         times.",
        "The gap becomes larger when more of the memory is remote.",
    ],
    conditions: "MongoDB, VoltDB and Redis, 10 million records and as many queries of ETC (95 % reads) and SYS (75 \
                 %), Zipf, 15 to 22 GB, 50 and 25 % of the most memory resident.",
    differs: &[
        PAGED_DIFFERS,
        "Redis over a Unix socket, and SQLite in the process that asks (by Python) in place of MongoDB and VoltDB. \
         98,304 records of 1,000 bytes. One operation at a time. Every value that is read is compared.",
        "Filled once for all panels of a database: both mixes are asked one after the other.",
    ],
    ..BLANK
};

/// Machine learning over remote paging: a panel for each algorithm.
const FIGURE_11: Experiment = Experiment {
    place: "figure 11, section 6-A",
    x: Axis::linear("resident", "%"),
    y: Axis::logarithmic("completion time", "s"),
    conditions: "Data of 4 to 87 million samples, 22 to 50 GB, 50 and 25 % of the most memory resident.",
    differs: &[
        PAGED_DIFFERS,
        "The same algorithm in Python with numpy, one thread, a few rounds on 96 MiB of made-up data; the training \
         alone is timed. What is learnt is the same to the last bit as with all memory resident, or the experiment \
         fails.",
    ],
    ..BLANK
};

/// A remote file system: a panel for writing and one for reading.
const FIGURE_12: Experiment = Experiment {
    place: "figure 12, section 6-B",
    x: Axis::logarithmic("record", "B"),
    y: Axis::logarithmic("bandwidth", "MB/s"),
    conditions: "IOzone with 10 GB on a FUSE mount; one client, one server; at most 128 KB a request.",
    differs: &[
        "Not IOzone, which Debian does not distribute, but its pattern: one process writes a new file record by \
         record, writes it once more, reads it, reads it once more, for each record size. 256 MiB, or less where \
         measurements are short. A word of each page is checked when it is read, and that is in the figures.",
        "farcall mount over one memory node, one replica, without a page cache, up to 1 MiB a request. tmpfs and a \
         FUSE daemon by the same loop that does nothing are what it could be at most.",
        "No file systems over the rivals. The engine alone: bursts of a record’s pages of 4 KiB, adjacent. UCX: its \
         own test of one-sided writes and reads of one buffer over shared memory. libfabric: its own ping-pong over \
         shared memory. Accelio, Octopus and GlusterFS are not measured.",
    ],
    ..BLANK
};

/// Experiments in the paper's order.
pub(in crate::figures::papers) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "C.10a",
        title: "SQLite over remote paging: throughput",
        y: THROUGHPUT,
        trials: || queried(Database::Sqlite, Sample::kops),
        ..FIGURE_10
    },
    Experiment {
        id: "C.10b",
        title: "SQLite over remote paging: 99th percentile",
        y: TAIL,
        trials: || queried(Database::Sqlite, Sample::p99_us),
        ..FIGURE_10
    },
    Experiment {
        id: "C.10c",
        title: "Redis over remote paging: throughput",
        y: THROUGHPUT,
        trials: || queried(Database::Redis, Sample::kops),
        ..FIGURE_10
    },
    Experiment {
        id: "C.10d",
        title: "Redis over remote paging: 99th percentile",
        y: TAIL,
        trials: || queried(Database::Redis, Sample::p99_us),
        ..FIGURE_10
    },
    Experiment {
        id: "C.11a",
        title: "Logistic regression over remote paging: completion time",
        statements: &["Accelio takes up to 2.83 times as long, plain verbs 3.69 times."],
        trials: || learnt(Algorithm::LogisticRegression),
        ..FIGURE_11
    },
    Experiment {
        id: "C.11b",
        title: "Gradient boosting over remote paging: completion time",
        statements: &[
            "Accelio takes up to 1.5 times as long, plain verbs 1.53 times: it computes more than it waits for memory.",
        ],
        trials: || learnt(Algorithm::GradientBoosting),
        ..FIGURE_11
    },
    Experiment {
        id: "C.11c",
        title: "K-means over remote paging: completion time",
        statements: &[
            "Accelio takes up to 1.8 times as long, plain verbs 2.62 times: it computes more than it waits for memory.",
        ],
        trials: || learnt(Algorithm::KMeans),
        ..FIGURE_11
    },
    Experiment {
        id: "C.11d",
        title: "TextRank over remote paging: completion time",
        statements: &[
            "Accelio takes up to 4.62 times as long, plain verbs 6.44 times: what needs most memory profits most.",
        ],
        trials: || learnt(Algorithm::TextRank),
        ..FIGURE_11
    },
    Experiment {
        id: "C.12a",
        title: "A remote file system: bandwidth of writing",
        statements: &[
            "1.5 to 2.8 times as much as over plain verbs, 1.1 to 1.6 over Accelio, 2.1 to 3.1 over UCX, 2.2 to 3.7 \
             over libfabric; 1.4 to 1.7 times as much as Octopus, 1.4 to 2.2 times as much as GlusterFS.",
        ],
        trials: || {
            let passes = [
                ("farcall mount, write", (Place::Remote, Pass::Write)),
                ("farcall mount, rewrite", (Place::Remote, Pass::Rewrite)),
                ("limit: tmpfs, write", (Place::Tmpfs, Pass::Write)),
                ("limit: tmpfs, rewrite", (Place::Tmpfs, Pass::Rewrite)),
                ("limit: empty FUSE daemon", (Place::Empty, Pass::Rewrite)),
            ];
            let ucx = |record_bytes| ("UCX, ucp_put_bw", UcxTest::RemotePut(record_bytes));
            passed(&passes, Workload::ADJACENT_WRITES, ucx)
        },
        ..FIGURE_12
    },
    Experiment {
        id: "C.12b",
        title: "A remote file system: bandwidth of reading",
        statements: &[
            "2.4 to 4.8 times as much as over plain verbs, 1.2 to 2.6 over Accelio, 2.7 to 5.6 over UCX, 2.8 to 5.9 \
             over libfabric; 1.5 to 2 times as much as Octopus, 1.6 to 2.6 times as much as GlusterFS.",
        ],
        trials: || {
            let passes = [
                ("farcall mount, read", (Place::Remote, Pass::Read)),
                ("farcall mount, reread", (Place::Remote, Pass::Reread)),
                ("limit: tmpfs, read", (Place::Tmpfs, Pass::Read)),
                ("limit: tmpfs, reread", (Place::Tmpfs, Pass::Reread)),
                ("limit: empty FUSE daemon", (Place::Empty, Pass::Read)),
            ];
            let ucx = |record_bytes| ("UCX, ucp_get", UcxTest::RemoteGet(record_bytes));
            passed(&passes, Workload::ADJACENT_READS, ucx)
        },
        ..FIGURE_12
    },
];

const fn series(mix: Mix, backing: Backing) -> &'static str {
    match (mix, backing) {
        (Mix::Etc, Backing::None) => "ETC, all in local memory",
        (Mix::Sys, Backing::None) => "SYS, all in local memory",
        (Mix::Etc, Backing::Bare) => "ETC, empty loop on FUSE",
        (Mix::Sys, Backing::Bare) => "SYS, empty loop on FUSE",
        (Mix::Etc, Backing::Remote) => "ETC, farcall page",
        (Mix::Sys, Backing::Remote) => "SYS, farcall page",
        (Mix::Etc, Backing::Disk) => "ETC, swap file",
        (Mix::Sys, Backing::Disk) => "SYS, swap file",
        (Mix::Etc, Backing::Zram) => "ETC, zram",
        (Mix::Sys, Backing::Zram) => "SYS, zram",
    }
}

fn queried(database: Database, y: fn(&Sample) -> f64) -> Vec<Trial> {
    let tasks = Resident::COMPARED
        .into_iter()
        .flat_map(|resident| [Mix::Etc, Mix::Sys].map(|mix| DatabaseTask { database, mix, resident }));
    tasks
        .map(|task| Trial::at(series(task.mix, task.resident.backing), task.resident.percent.into(), task, y))
        .collect()
}

fn learnt(algorithm: Algorithm) -> Vec<Trial> {
    let of = |resident: Resident| {
        let task = LearningTask { algorithm, resident };
        Trial::at(resident.backing.name(), resident.percent.into(), task, Sample::seconds)
    };
    Resident::COMPARED.map(of).into()
}

fn passed(
    passes: &[(&'static str, (Place, Pass))],
    workload: Workload,
    ucx: fn(usize) -> (&'static str, UcxTest),
) -> Vec<Trial> {
    let limit = Trial::limit_of_bandwidth_in(1_000.0);
    let mut trials =
        sweep_beside(limit, &RECORDS_BYTES, passes, Sample::mb_per_second, |record_bytes, (place, pass)| {
            FilesTask { place, pass, record_bytes: record_bytes as usize }
        });
    let engines = [(MERGED, Combining::MergeAndChain), (SINGLE, Combining::Single)];
    let y = |sample: &Sample| sample.common.per_second * f64::from(PAGE_BYTES) / 1e6;
    trials.extend(sweep_beside([], &RECORDS_BYTES, &engines, y, |record_bytes, combining| RemioTask {
        threads: 1,
        burst: record_bytes / PAGE_BYTES,
        ..RemioTask::of(workload, combining)
    }));
    for record_bytes in RECORDS_BYTES {
        let (series, test) = ucx(record_bytes as usize);
        let rivals = [
            (series, Rival::Ucx(test)),
            ("libfabric, messages back and forth", Rival::Libfabric(record_bytes as usize)),
        ];
        let y = Sample::mb_per_second;
        trials.extend(rivals.map(|(series, rival)| Trial::at(series, record_bytes.into(), rival, y)));
    }
    trials
}
