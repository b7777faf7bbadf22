//! Latency of a small WRITE by its length.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::rnic::{Operation, RnicTask, RnicTest, Tuning};
use farcall_link::Transport;

const WRITE: &str = "WRITE until its completion";
const LENS_BYTES: [usize; 6] = [8, 16, 32, 64, 128, 256];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.section-2.4",
    place: "section 2.4",
    title: "Latency of WRITE by size",
    x: Axis::logarithmic("data size", "B"),
    y: Axis::linear("mean latency", "µs"),
    published: &[Published {
        series: WRITE,
        points: &[(Some(8.0), 1.12), (Some(256.0), 2.04)],
        source: "section 2.4: from 8 to 256 bytes",
    }],
    statements: &["Latency grows slowly with size: so batches pay."],
    conditions: "The time until the data is written at its destination.",
    how: How::Here { differs: &["The time until the initiator’s completion."], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mean_us));
    for len_bytes in LENS_BYTES {
        let tuning = Tuning { signal_every: 1, ..Tuning::LATENCY };
        let (operation, transport, test) = (Operation::Write, Transport::Rc, RnicTest::Completion);
        let task = RnicTask { operation, transport, test, len_bytes, tuning };
        trials.push(Trial::at(WRITE, len_bytes as f64, task, Sample::mean_us));
    }
    trials
}
