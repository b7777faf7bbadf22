//! Batches under skewed load.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.15",
    place: "figure 15, section 5.6",
    title: "Throughput of batched calls by latency, skewed",
    x: Axis::linear("latency", "µs"),
    y: Axis::linear("requests", "million/s"),
    published: &[],
    statements: &["Skew (Zipf .99) changes little."],
    conditions: "As in figure 13.",
    how: How::NotYet("the benchmark of the store does not put its operations into batches yet."),
    file: file!(),
};
