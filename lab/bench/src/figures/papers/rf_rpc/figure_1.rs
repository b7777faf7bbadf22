//! In-bound and out-bound operations, by size.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Subject, Trial};
use crate::rnic::{Direction, Inlining, Operation, RnicTask, RnicTest, Tuning};
use farcall_link::Transport;

const IN_BOUND: &str = "in-bound (READ)";
const OUT_BOUND: &str = "out-bound (WRITE)";
const LENS_BYTES: [usize; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Number of connections, which represent the client threads with one outstanding operation each.
const CONNECTIONS: u32 = 4;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.1",
    place: "figure 1, section 2.2",
    title: "In-bound and out-bound operations by size",
    x: Axis::logarithmic("data size", "B"),
    y: Axis::linear("operations", "million/s"),
    published: &[
        Published {
            series: IN_BOUND,
            points: &[(None, 11.26)],
            source: "section 2.2: peak of in-bound READs",
        },
        Published {
            series: OUT_BOUND,
            points: &[(None, 2.11)],
            source: "section 2.2: peak of out-bound WRITEs",
        },
    ],
    statements: &[
        "In-bound peak about five times the out-bound one; alike above 2 KB, where bandwidth limits both.",
        "Below L = 256 B size does not matter, above H = 1024 B bandwidth does (section 3.2).",
    ],
    conditions: "Four threads on each client machine; every thread waits for the completion of one operation before the \
                 next.",
    how: How::Here {
        differs: &[
            "In-bound operations are issued by clients, out-bound ones by the server. On one host one process of one \
             thread issues and one is passive; the asymmetry of an RNIC needs two hosts, where two client processes \
             have one of the server half each.",
            "Four queue pairs a process, one operation under way on each, in turn.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let tuning = Tuning {
        window: 1,
        chain: 1,
        signal_every: 1,
        inlining: Inlining::UpTo(0),
        qps: CONNECTIONS,
        active_qps: CONNECTIONS,
        ..Tuning::LATENCY
    };
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for len_bytes in LENS_BYTES {
        for (series, operation, direction) in [
            (IN_BOUND, Operation::Read, Direction::InBound),
            (OUT_BOUND, Operation::Write, Direction::OutBound),
        ] {
            let (transport, test) = (Transport::Rc, RnicTest::Throughput);
            let task = RnicTask { operation, transport, test, len_bytes, tuning };
            trials.push(Trial::at(series, len_bytes as f64, Subject::Rate(task, direction), Sample::mops));
        }
    }
    trials
}
