//! Savings of L5's dense mailbox, which the paper describes but did not implement.

use super::{DIFFERS, PAPER, WRITE_WRITE, responses};
use crate::experiments::calls::CallTask;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

/// Numbers of silent connections in addition to the one that calls.
const SILENT: [u32; 5] = [0, 63, 255, 511, 895];
const DENSE: &str = "WriteWrite, dense mailbox";
pub(super) const ID: &str = "B.section-8";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "section 8",
    title: "One call at a time beside empty mailboxes: scanned one by one, or as dense bytes",
    x: Axis::linear("empty mailboxes", ""),
    y: Axis::linear("median latency", "µs"),
    published: &[],
    statements: &[
        "With 64 clients only one cache line is polled instead of 64; but the requester writes two messages instead of \
         one, which costs latency and operations of the RNIC. Not measured there.",
    ],
    conditions: "The paper names the design of L5 and did not build it.",
    how: How::Here { differs: &[DIFFERS], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::p50_us));
    for silent_connections in SILENT {
        for (series, preset) in [(WRITE_WRITE, "server-reply"), (DENSE, "l5")] {
            let task = CallTask { silent_connections, ..responses(preset, 64, 1) };
            trials.push(Trial::at(series, silent_connections.into(), task, Sample::p50_us));
        }
    }
    trials
}
