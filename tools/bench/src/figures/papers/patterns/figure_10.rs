//! Many requesters and several responders, through dispatchers.

use super::{NO_DISPATCHER, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.10",
    place: "figure 10, section 7",
    title: "N-to-M: bandwidth by responders with a dispatcher on each node",
    x: Axis::linear("responder threads", ""),
    y: Axis::linear("bandwidth", "GB/s"),
    published: &[],
    statements: &[
        "Up to 4 KB private connections are better; with 16 KB WriteSend and SendSend gain up to 5 GB/s by the dispatcher.",
    ],
    conditions: "As in figure 8.",
    how: How::NotYet(NO_DISPATCHER),
    file: file!(),
};
