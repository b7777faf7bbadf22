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
use crate::experiments::kv_main::{FrontEnd, KvTask};
use crate::workload::{Distribution, Workload};

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

/// GETs on one connection, one after the other, without anybody who writes.
const fn lone_gets(front_end: FrontEnd) -> KvTask {
    let (workload, distribution) = (Workload::C, Distribution::Uniform);
    KvTask { front_end, workload, distribution, window: 1, connections: 1, batch: None }
}

/// What the papers found about what was run.
pub(super) fn findings(results: &Results) -> Vec<Finding> {
    [patterns::findings(results), rdmabox::findings(results), rr_compound::findings(results)].concat()
}
