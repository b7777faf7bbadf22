//! Many requesters through a dispatcher.

use super::{NO_DISPATCHER, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.6",
    place: "figure 6, section 6",
    title: "N-to-one: bandwidth with a dispatcher on each node",
    x: Axis::linear("requesters", ""),
    y: Axis::linear("bandwidth", "GB/s"),
    published: &[],
    statements: &[
        "As with private connections; but responses of 4 KB need 40 requesters instead of 16 for the full bandwidth: the \
         hand-over costs time. SendSend and SendWrite decline as before, so the number of connections was not why.",
    ],
    conditions: "As in figure 5, with one connection for each node.",
    how: How::NotYet(NO_DISPATCHER),
    file: file!(),
};
