//! Throughput of verbs that one server issues to many clients.

use super::{PAPER, TWO_CLIENTS, WINDOWS};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::rnic::Direction;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "E.4",
    place: "figure 4, section 3.2",
    title: "Out-bound throughput of verbs by size",
    x: Axis::logarithmic("payload", "B"),
    y: Axis::linear("operations", "million/s"),
    published: &[],
    statements: &[
        "Inlined WRITEs and SENDs of small size are significantly faster than READs; large ones slower, but never less than \
         half as fast.",
    ],
    conditions: "One server issues to many clients; windows tuned for each point.",
    how: How::Here {
        differs: &[TWO_CLIENTS, WINDOWS, "Of SENDs over UD those are counted that arrived."],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    let columns = &["WR-INLINE UC", "WRITE UC", "SEND-INLINE UD", "SEND UD", "READ RC"];
    trials.extend(Trial::herd_rates(Direction::OutBound, columns));
    trials
}
