//! Bandwidth of one requester and one responder.

use super::{DIFFERS, PAPER, PATTERNS, RESPONSE_LENS_BYTES, responses};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

pub(super) const ID: &str = "B.3a";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 3a, section 5",
    title: "One-to-one: bandwidth by response size",
    x: Axis::logarithmic("response", "B"),
    y: Axis::logarithmic("bandwidth", "GB/s"),
    published: &[],
    statements: &[
        "64 and 256 B: SendSend is worst, WriteWrite best, by around 40 %.",
        "16 KB: 700 MB/s lie between WriteWrite and SendSend.",
        "4 MB: all reach the limit of bandwidth.",
    ],
    conditions: "One thread at each end, a private connection.",
    how: How::Here {
        differs: &[
            DIFFERS,
            "Responses up to 16 KiB: longer ones go in pieces here, which the paper’s do not.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth()];
    for len_bytes in RESPONSE_LENS_BYTES {
        for (series, preset) in PATTERNS {
            let task = responses(preset, len_bytes, 1);
            trials.push(Trial::at(series, len_bytes.into(), task, Sample::gb_per_second));
        }
    }
    trials
}
