//! Batching strategies: throughput.

use super::{BATCHING_DIFFERS, DIFFERS, ETC, PAPER, SYS, batching};
use crate::figures::experiment::{Axis, Experiment, How};
use crate::remio::Sample;

pub(super) const ID: &str = "C.6";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 6, section 5-A",
    title: "Ways of batching: throughput under ETC and SYS",
    x: Axis::linear("0: ETC; 1: SYS", ""),
    y: Axis::linear("requests", "thousand/s"),
    published: &[],
    statements: &[
        "Merging is 23.6 to 24.4 % better than single I/O with preMR, 11.2 to 11.5 % with dynMR, under both loads.",
        "Hybrid is 22.2 to 47.7 % better than single I/O under ETC, 15.7 to 40.5 % under SYS, with preMR and \
         dynMR; than doorbells alone 10.8 to 22.2 % and 7.5 to 13.4 %.",
    ],
    conditions: "VoltDB with 20 GB over remote paging, a quarter of it resident; blocks of 128 KB; one to one.",
    how: How::Here {
        differs: &[DIFFERS, BATCHING_DIFFERS],
        trials: || batching(&[(0.0, ETC), (1.0, SYS)], Sample::kiops),
    },
    file: file!(),
};
