//! The experiments, as data: a module for each paper.
//!
//! A description restates the numbers that the paper's text states (its plots are pictures, and no values are read from
//! them). It describes how the same is measured here, or why it is not.

mod herd;
mod patterns;
mod rdmabox;
mod rf_rpc;
mod rr_compound;

use super::experiment::Experiment;
use super::results::Results;
use super::verdict::{Finding, decided};
use crate::experiments::kv_main::{FrontEnd, KvTask};
use crate::workload::{Distribution, Workload};

/// Returns all experiments, paper by paper.
pub fn all() -> impl Iterator<Item = &'static Experiment> + Clone {
    [
        rf_rpc::EXPERIMENTS,
        patterns::EXPERIMENTS,
        rdmabox::EXPERIMENTS,
        rdmabox::PROGRAMS,
        rr_compound::EXPERIMENTS,
        rr_compound::CALLS,
        rr_compound::PROGRAMS,
        herd::EXPERIMENTS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the task of sequential GETs on one connection, without concurrent writers.
const fn lone_gets(front_end: FrontEnd) -> KvTask {
    let (workload, distribution) = (Workload::C, Distribution::Uniform);
    KvTask { front_end, workload, distribution, window: 1, connections: 1, batch: None }
}

/// Returns the verdicts on the papers' findings about the experiments in `results`.
pub(super) fn findings(results: &Results) -> Vec<Finding> {
    let rules = [
        (patterns::FINDINGS, &patterns::PAPER),
        (rdmabox::FINDINGS, &rdmabox::PAPER),
        (rr_compound::FINDINGS, &rr_compound::PAPER),
    ];
    rules.into_iter().flat_map(|(rules, paper)| decided(rules, paper, results)).collect()
}
