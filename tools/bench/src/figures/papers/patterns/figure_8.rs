//! Many requesters and several responders.

use super::{NO_MANY, PAPER};
use crate::figures::experiment::{Axis, Experiment, How};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.8",
    place: "figure 8, section 7",
    title: "N-to-M: bandwidth by responders",
    x: Axis::linear("responder threads", ""),
    y: Axis::linear("bandwidth", "GB/s"),
    published: &[],
    statements: &[
        "Up to 1 KB bandwidth grows with responders. With 4 KB SendWrite is ahead of WriteSend, with well over 40 GB/s; \
         WriteWrite stays far from the possible 66 GB/s, because its mailboxes are often empty.",
    ],
    conditions: "90 requester threads on nine nodes, 2, 4 and 6 responder threads on each of three; every request goes \
                 to a random responder.",
    how: How::NotYet(NO_MANY),
    file: file!(),
};
