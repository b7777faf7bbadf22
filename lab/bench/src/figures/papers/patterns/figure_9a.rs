//! Very many requesters and one responder.

use super::{DIFFERS, PAPER, PATTERNS, responses};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const REQUESTERS: u32 = 90;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.9a",
    place: "figure 9a, section 7",
    title: "90-to-one: bandwidth of responses of 4 KiB",
    x: Axis::linear("requesters", ""),
    y: Axis::linear("bandwidth", "GB/s"),
    published: &[],
    statements: &[
        "With requests by WRITE the full bandwidth is reached in spite of the many mailboxes, with requests by SEND not.",
    ],
    conditions: "90 requester threads, one responder thread.",
    how: How::Here { differs: &[DIFFERS], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for (series, preset) in PATTERNS {
        let task = responses(preset, 4096, REQUESTERS);
        trials.push(Trial::at(series, REQUESTERS.into(), task, Sample::gb_per_second));
    }
    trials
}
