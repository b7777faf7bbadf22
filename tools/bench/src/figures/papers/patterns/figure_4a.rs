//! What a byte costs the requester.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How, Published};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.4a",
    place: "figure 4a, section 5",
    title: "One-to-one: instructions of the requester by response size",
    x: Axis::logarithmic("response", "B"),
    y: Axis::logarithmic("instructions", "for each byte"),
    published: &[Published {
        series: "the worst pattern",
        points: &[(Some(64.0), 450.0)],
        source: "section 5: up to 450",
    }],
    statements: &[],
    conditions: "One thread at each end, a private connection.",
    how: How::NotYet(
        "the kernel’s counters of instructions are not read yet, and the time of a requester, which polls without end, \
         is that of its calls.",
    ),
    file: file!(),
};
