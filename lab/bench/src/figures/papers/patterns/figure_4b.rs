//! Cost of a byte at the responder.

use super::{DIFFERS, PAPER, PATTERNS, RESPONSE_LENS_BYTES, TIME_NOT_CYCLES, responses};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

pub(super) const ID: &str = "B.4b";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 4b, section 5",
    title: "One-to-one: what a byte costs the responder, by response size",
    x: Axis::logarithmic("response", "B"),
    y: Axis::logarithmic("processor time of the responder", "ns for each byte"),
    published: &[],
    statements: &[
        "For 64-byte messages up to 800 instructions for each byte; with larger responses the overhead is amortised.",
    ],
    conditions: "One thread at each end, a private connection.",
    how: How::Here { differs: &[DIFFERS, TIME_NOT_CYCLES], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for len_bytes in RESPONSE_LENS_BYTES {
        for (series, preset) in PATTERNS {
            let task = responses(preset, len_bytes, 1);
            let ns_per_byte =
                move |sample: &Sample| sample.server_cpu_us_per_call * 1e3 / f64::from(len_bytes);
            trials.push(Trial::at(series, len_bytes.into(), task, ns_per_byte));
        }
    }
    trials
}
