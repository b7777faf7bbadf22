//! A remote file system.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "C.12",
    place: "figure 12, section 6-B",
    title: "A remote file system: bandwidth of writing and reading",
    x: Axis::logarithmic("record", "B"),
    y: Axis::linear("bandwidth", "MB/s"),
    published: &[],
    statements: &[
        "Written 1.5 to 2.8 times as fast as over plain verbs, read 2.4 to 4.8 times; over UCX 2.1 to 3.1 and 2.7 \
         to 5.6 times.",
    ],
    conditions: "IOzone with 10 GB on a FUSE mount; one client, one server; at most 128 KB a request.",
    how: How::NotYet("there is no remote file system here yet: only the engine below it."),
    file: file!(),
};
