//! Batching strategies: tail latency.

use super::{BATCHING_DIFFERS, DIFFERS, ETC, PAPER, SYS, batching};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::remio::Sample;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "C.7",
    place: "figure 7, section 5-A",
    title: "Ways of batching: 99th percentile under ETC and SYS",
    x: Axis::linear("0: ETC; 1: SYS", ""),
    y: Axis::linear("completion time, 99th percentile", "µs"),
    published: &[],
    statements: &["Merging and chaining have no negative effect on the tail."],
    conditions: "As in figure 6; the latency of the database.",
    how: How::Here {
        differs: &[DIFFERS, BATCHING_DIFFERS, "The completion time of a request."],
        trials: || batching(&[(0.0, ETC), (1.0, SYS)], Sample::p99_us),
    },
    file: file!(),
};
