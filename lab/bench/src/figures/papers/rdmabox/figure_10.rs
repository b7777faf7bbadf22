//! Databases over remote paging: a panel for throughput and one for tail latency of each database.

use super::{PAGED_DIFFERS, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::paged::{Backing, Database, DatabaseTask, Mix, Resident};

const THROUGHPUT: Axis = Axis::logarithmic("operations", "thousand/s");
const TAIL: Axis = Axis::logarithmic("latency, 99th percentile", "µs");

const fn panel(id: &'static str, title: &'static str, y: Axis, trials: fn() -> Vec<Trial>) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 10, section 6-A",
        title,
        x: Axis::linear("resident", "%"),
        y,
        published: &[],
        statements: &[
            "Up to 3.87 times Accelio’s throughput of MongoDB, 4.01 of VoltDB, 2.73 of Redis; up to 7.52, 6.6 and \
             4.72 times that over plain verbs.",
            "The average latency is up to 5.24 times as long over Accelio, 6.47 over verbs; the 99th percentile 45 \
             and 68 times.",
            "The gap becomes larger when more of the memory is remote.",
        ],
        conditions: "MongoDB, VoltDB and Redis, 10 million records and as many queries of ETC (95 % reads) and SYS \
                     (75 %), Zipf, 15 to 22 GB, 50 and 25 % of the most memory resident.",
        how: How::Here {
            differs: &[
                PAGED_DIFFERS,
                "Redis over a Unix socket, and SQLite in the process that asks (by Python) in place of MongoDB and \
                 VoltDB. 98,304 records of 1,000 bytes. One operation at a time. Every value that is read is compared.",
                "Filled once for all panels of a database: both mixes are asked one after the other.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const SQLITE: Experiment =
    panel("C.10a", "SQLite over remote paging: throughput", THROUGHPUT, || {
        trials(Database::Sqlite, Sample::kops)
    });

pub(super) const SQLITE_TAIL: Experiment =
    panel("C.10b", "SQLite over remote paging: 99th percentile", TAIL, || {
        trials(Database::Sqlite, Sample::p99_us)
    });

pub(super) const REDIS: Experiment =
    panel("C.10c", "Redis over remote paging: throughput", THROUGHPUT, || {
        trials(Database::Redis, Sample::kops)
    });

pub(super) const REDIS_TAIL: Experiment =
    panel("C.10d", "Redis over remote paging: 99th percentile", TAIL, || {
        trials(Database::Redis, Sample::p99_us)
    });

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

fn trials(database: Database, y: fn(&Sample) -> f64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for resident in Resident::COMPARED {
        for mix in [Mix::Etc, Mix::Sys] {
            let task = DatabaseTask { database, mix, resident };
            trials.push(Trial::at(series(mix, resident.backing), resident.percent.into(), task, y));
        }
    }
    trials
}
