//! Gain and cost of batches.

use super::{BATCH_DIFFERS, BATCHES, PAPER, RF_RPC_BATCH, SERVER_REPLY_BATCH, batched};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.13",
    place: "figure 13, section 5.6",
    title: "Throughput of batched calls by latency",
    x: Axis::linear("latency", "µs"),
    y: Axis::linear("requests", "million/s"),
    published: &[
        Published {
            series: RF_RPC_BATCH,
            points: &[(None, 62.7), (Some(12.63), 45.80)],
            source: "section 5.6: peak, and with batches of 24",
        },
        Published {
            series: SERVER_REPLY_BATCH,
            points: &[(Some(12.63), 21.67)],
            source: "section 5.6: at the same latency",
        },
    ],
    statements: &[
        "Batches of 4 give 3.9 times the throughput of RF-RPC for 8 % more latency.",
        "RF-RPC-auto-batch comes near the best possible throughput under each latency limit (95 % of calls below it).",
    ],
    conditions: "16 server processes, 35 client processes, batches of 2 to 96, 16-byte keys, 32-byte values.",
    how: How::Here {
        differs: &[
            BATCH_DIFFERS,
            "Batches of 2 to 24; each point is one repetition. The automatic size is not measured here.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for size in BATCHES {
        for (series, preset) in [(RF_RPC_BATCH, "rf-rpc"), (SERVER_REPLY_BATCH, "server-reply")] {
            let place = |sample: &Sample| (sample.round_mean_us, sample.mops());
            trials.push(Trial::scattered(series, batched(preset, size), place));
        }
    }
    trials
}
