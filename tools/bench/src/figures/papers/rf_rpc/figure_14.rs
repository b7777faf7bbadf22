//! What a batch's size does to latency.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How, Published};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.14",
    place: "figure 14, section 5.6",
    title: "Latency by batch size",
    x: Axis::linear("calls in a batch", ""),
    y: Axis::linear("latency", "µs"),
    published: &[Published {
        series: "RF-RPC-batch",
        points: &[(Some(4.0), 6.17)],
        source: "section 5.6; the text gives the latency of batches of 24 with figure 13",
    }],
    statements: &["Nearly linear; server-reply-batch is 18 % to 100 % slower."],
    conditions: "As in figure 13.",
    how: How::NotYet(super::NO_BATCHES),
    file: file!(),
};
