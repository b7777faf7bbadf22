//! Distribution of the cycles of a shared receive queue.

use super::PAPER;
use crate::figures::experiment::{Axis, Experiment, How, Published};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "B.table-1",
    place: "table 1, section 6",
    title: "SendSend: where the responder’s cycles go",
    x: Axis::linear("1: pthread_spin_lock; 2: mlx5_poll_cq_1", ""),
    y: Axis::linear("cycles", "%"),
    published: &[Published {
        series: "SendSend",
        points: &[(Some(1.0), 61.0), (Some(2.0), 17.0)],
        source: "table 1",
    }],
    statements: &[],
    conditions: "Responses of 4 KB, 40 requesters, one responder.",
    how: How::NotYet(
        "it is a profile of the functions of one RNIC’s driver; the software RNIC polls without a lock, and has no shared \
         receive queue in this path.",
    ),
    file: file!(),
};
