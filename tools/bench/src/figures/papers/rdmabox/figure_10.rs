//! Databases over remote paging.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "C.10",
    place: "figure 10, section 6-A",
    title: "Databases over remote paging: throughput and latency",
    x: Axis::linear("resident", "%"),
    y: Axis::linear("operations", "thousand/s"),
    published: &[],
    statements: &[
        "Over Accelio up to 3.87 times the throughput of MongoDB, 4.01 of VoltDB, 2.73 of Redis; over plain verbs \
         7.52, 6.6 and 4.72.",
    ],
    conditions: "MongoDB, VoltDB and Redis under ETC and SYS, Zipf, 15 to 22 GB, 50 and 25 % of it resident.",
    how: How::NotYet("there is no remote paging here yet: only the engine below it."),
    file: file!(),
};
