//! A thread for each queue pair.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.12",
    place: "figure 12, section 5.5",
    title: "A server thread for each queue pair",
    x: Axis::linear("server thread", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[],
    statements: &["The threads of figure 11 are together about 1.51 times as fast."],
    conditions: "42 clients, 42 server threads, 32-byte values, 95 % GET, uniform and Zipf .99.",
    how: How::NotYet(
        "the server has a thread for each partition, not for each queue pair, and 42 threads on one core would measure \
         the scheduler.",
    ),
    file: file!(),
};
