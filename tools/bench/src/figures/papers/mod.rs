//! The experiments, one file each, in a folder for each paper.
//!
//! A file restates the numbers that the paper's text gives (its plots are pictures, nothing is read off them), and says
//! how the same is measured here, or why it is not.

mod herd;
mod patterns;
mod rdmabox;
mod rf_rpc;
mod rr_compound;

use super::experiment::Experiment;
use super::results::Results;
use super::verdict::Finding;

/// All experiments, paper by paper.
pub fn all() -> impl Iterator<Item = &'static Experiment> {
    [
        rf_rpc::EXPERIMENTS,
        patterns::EXPERIMENTS,
        rdmabox::EXPERIMENTS,
        rr_compound::EXPERIMENTS,
        herd::EXPERIMENTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// What the papers found about what was run.
pub(super) fn findings(results: &Results) -> Vec<Finding> {
    [patterns::findings(results), rdmabox::findings(results), rr_compound::findings(results)].concat()
}
