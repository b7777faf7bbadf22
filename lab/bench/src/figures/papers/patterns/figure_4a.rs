//! Cost of a byte at the requester.

use super::{DIFFERS, PAPER, PATTERNS, RESPONSE_LENS_BYTES, responses};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};

pub(super) const ID: &str = "B.4a";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 4a, section 5",
    title: "One-to-one: what a byte costs the requester, by response size",
    x: Axis::logarithmic("response", "B"),
    y: Axis::logarithmic("processor time of the requester", "ns for each byte"),
    published: &[Published {
        series: "the worst pattern, in instructions for each byte",
        points: &[(Some(64.0), 450.0)],
        source: "section 5: up to 450",
    }],
    statements: &["With larger responses the overhead is amortised."],
    conditions: "One thread at each end, a private connection.",
    how: How::Here {
        differs: &[
            DIFFERS,
            "Processor time of the requester, in nanoseconds; the paper counts instructions, for which this program asks \
             no counter of the processor. The requester polls, so its time is that of whole calls.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for len_bytes in RESPONSE_LENS_BYTES {
        for (series, preset) in PATTERNS {
            let task = responses(preset, len_bytes, 1);
            let ns_per_byte =
                move |sample: &Sample| sample.client_cpu_us_per_call * 1e3 / f64::from(len_bytes);
            trials.push(Trial::at(series, len_bytes.into(), task, ns_per_byte));
        }
    }
    trials
}
