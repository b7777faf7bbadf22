//! E: HERD (SIGCOMM 2014); covers its design section and its micro-benchmarks of verbs.

mod figure_2;
mod figure_3;
mod figure_4;
mod systems;

use crate::figures::experiment::{Experiment, Paper};

const PAPER: Paper = Paper {
    letter: 'E',
    title: "Using RDMA Efficiently for Key-Value Services (HERD)",
    setup: "One server machine and several client machines with ConnectX-3 (56 Gb/s InfiniBand).",
};

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[&Experiment] =
    &[&figure_2::EXPERIMENT, &figure_3::EXPERIMENT, &figure_4::EXPERIMENT, &systems::EXPERIMENT];

/// Note on the side that issues operations.
const TWO_CLIENTS: &str = "On one host one process issues and one is passive: in-bound and out-bound operations are the \
                           same work, by another core. Between two hosts two client processes issue to two of the \
                           server half (in-bound), or the other way round (out-bound).";
/// Note on the choice of windows.
const WINDOWS: &str = "Four connections; a first run chooses the window of each point, out of six.";
