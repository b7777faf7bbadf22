//! The experiments, one file each, in a directory for each paper.
//!
//! A file restates the numbers that the paper's text states (its plots are pictures, and no values are read from
//! them). It describes how the same is measured here, or why it is not.

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

/// Returns all experiments, paper by paper.
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

/// Returns the task of sequential GETs on one connection, without concurrent writers.
const fn lone_gets(front_end: FrontEnd) -> KvTask {
    let (workload, distribution) = (Workload::C, Distribution::Uniform);
    KvTask { front_end, workload, distribution, window: 1, connections: 1, batch: None }
}

/// Returns the verdicts on the papers' findings about the experiments in `results`.
pub(super) fn findings(results: &Results) -> Vec<Finding> {
    [patterns::findings(results), rdmabox::findings(results), rr_compound::findings(results)].concat()
}
