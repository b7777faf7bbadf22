//! Batches under skewed load.

use super::{BATCHES, PAPER, RF_RPC_BATCH, SERVER_REPLY_BATCH, batched_load};
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::workload::Distribution;

const UNIFORM: &str = "RF-RPC-batch, uniform";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.15",
    place: "figure 15, section 5.6",
    title: "Throughput of batched calls by latency, skewed",
    x: Axis::linear("latency", "µs"),
    y: Axis::linear("requests", "million/s"),
    published: &[],
    statements: &["Skew (Zipf .99) changes little."],
    conditions: "As in figure 13.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "Batches of 2 to 24 on one connection, as many operations under way as fill one; each point is one \
             repetition. The automatic size is not measured here.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for size in BATCHES {
        for (series, front_end, distribution) in [
            (RF_RPC_BATCH, FrontEnd::RfRpc, Distribution::Zipfian),
            (UNIFORM, FrontEnd::RfRpc, Distribution::Uniform),
            (SERVER_REPLY_BATCH, FrontEnd::ServerReply, Distribution::Zipfian),
        ] {
            let task = batched_load(front_end, distribution, 1, size);
            trials.push(Trial::scattered(series, task, |sample: &Sample| (sample.mean_us(), sample.mops())));
        }
    }
    trials
}
