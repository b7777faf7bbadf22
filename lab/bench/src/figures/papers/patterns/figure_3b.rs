//! Latency of one requester and one responder.

use super::{DIFFERS, PAPER, PATTERNS, RESPONSE_LENS_BYTES, responses};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.3b",
    place: "figure 3b, section 5",
    title: "One-to-one: median latency by response size",
    x: Axis::logarithmic("response", "B"),
    y: Axis::linear("median latency", "µs"),
    published: &[],
    statements: &[
        "Up to 256 B all are below 4 µs, SendWrite and WriteWrite below 3 µs.",
        "16 KB: almost 2 µs lie between SendWrite/WriteWrite and SendSend/WriteSend.",
    ],
    conditions: "One thread at each end, a private connection.",
    how: How::Here { differs: &[DIFFERS], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::p50_us));
    for len_bytes in RESPONSE_LENS_BYTES {
        for (series, preset) in PATTERNS {
            trials.push(Trial::at(series, len_bytes.into(), responses(preset, len_bytes, 1), Sample::p50_us));
        }
    }
    trials
}
