//! Busy polling and events, one request per 100 µs.

use super::{PAPER, STREAMS_DIFFER, waits};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

const INTERVAL_US: u64 = 100;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "D.6",
    place: "figure 6, section IV-C",
    title: "Busy polling and events, 100 µs between requests: latency",
    x: Axis::logarithmic("clients", ""),
    y: Axis::logarithmic("mean latency", "µs"),
    published: &[],
    statements: &["Neither scales beyond 40 clients: 100 µs are the pain point of both."],
    conditions: "As figure 4, and each client sends 100 µs after an answer.",
    how: How::Here {
        differs: &[STREAMS_DIFFER],
        trials: || {
            let limits = Trial::limits_of_one(Sample::mean_us);
            limits.into_iter().chain(waits(INTERVAL_US, Sample::mean_us)).collect()
        },
    },
    file: file!(),
};
