//! Throughput of verbs that many clients issue to one server.

use super::{PAPER, TWO_CLIENTS, WINDOWS};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::rnic::Direction;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "E.3",
    place: "figure 3, section 3.2",
    title: "In-bound throughput of verbs by size",
    x: Axis::logarithmic("payload", "B"),
    y: Axis::linear("operations", "million/s"),
    published: &[
        Published { series: "WRITE UC", points: &[(Some(128.0), 35.0)], source: "section 3.2: up to 128 B" },
        Published { series: "READ RC", points: &[(Some(128.0), 26.0)], source: "section 3.2: up to 128 B" },
    ],
    statements: &[
        "Reliable WRITEs, too, are significantly faster than READs; 16 READs at most are under way on a queue \
                   pair.",
    ],
    conditions: "Many client processes issue to one server; windows tuned for each point.",
    how: How::Here { differs: &[TWO_CLIENTS, WINDOWS], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    trials.extend(Trial::herd_rates(Direction::InBound, &["WRITE UC", "WRITE RC", "READ RC"]));
    trials
}
