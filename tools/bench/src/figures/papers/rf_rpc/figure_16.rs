//! Batches over RoCE.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.16",
    place: "figure 16, section 5.8",
    title: "Throughput of batched calls by latency, over RoCE",
    x: Axis::linear("latency", "µs"),
    y: Axis::linear("requests", "million/s"),
    published: &[],
    statements: &[
        "Small batches raise throughput at little latency; large ones only latency. Throughput is lower than over \
         InfiniBand: 10 Gb/s, and two client machines.",
    ],
    conditions: "RoCE on ConnectX-3 (10 Gb/s Ethernet), two client machines with 8 clients each, 8 server processes, \
                 batches of 2 to 96.",
    how: How::NotYet("it needs RNICs on two hosts."),
    file: file!(),
};
