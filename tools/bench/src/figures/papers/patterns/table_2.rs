//! How many mailboxes are empty.

use super::{NO_MANY, PAPER};
use crate::figures::experiment::{Axis, Experiment, How, Published};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.table-2",
    place: "table 2, section 7",
    title: "N-to-M: empty mailboxes by responders",
    x: Axis::linear("responder threads", ""),
    y: Axis::linear("empty mailboxes", "%"),
    published: &[Published {
        series: "90 requesters",
        points: &[(Some(6.0), 83.3), (Some(12.0), 91.6), (Some(18.0), 94.4)],
        source: "table 2; 15, 7.5 and 5 requesters for each responder",
    }],
    statements: &[],
    conditions: "As in figure 8.",
    how: How::NotYet(NO_MANY),
    file: file!(),
};
