//! E: HERD (SIGCOMM 2014), of which the design part and the micro-benchmarks of verbs are at hand.

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

/// In the paper's order.
pub(super) const EXPERIMENTS: &[&Experiment] =
    &[&figure_2::EXPERIMENT, &figure_3::EXPERIMENT, &figure_4::EXPERIMENT, &systems::EXPERIMENT];

/// Why figures 3 and 4 are one measurement here.
const ONE_INITIATOR: &str = "One process issues, the other is passive: the same measurement stands for in-bound and for \
                             out-bound operations. What tells them apart needs RNICs on several hosts.";
/// How both are measured.
const WINDOWS: &str =
    "Four connections with 32 operations outstanding on each; the window is not tuned for each point.";
