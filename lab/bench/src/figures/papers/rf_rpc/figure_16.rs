//! Batches over RoCE.

use super::{BATCH_DIFFERS, BATCHES, PAPER, RF_RPC_BATCH, SERVER_REPLY_BATCH, batched};
use crate::experiments::calls::CallTask;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.16",
    place: "figure 16, section 5.8",
    title: "Throughput of batched calls by latency, over RoCE",
    x: Axis::linear("latency", "µs"),
    y: Axis::linear("requests", "million/s"),
    published: &[],
    statements: &[
        "Small batches raise throughput at little latency; large ones only latency. Throughput is lower than over \
         InfiniBand: 10 Gb/s, and two client machines.",
    ],
    conditions: "RoCE on ConnectX-3 (10 Gb/s Ethernet), two client machines with 8 clients each, 8 server processes, \
                 batches of 2 to 96.",
    how: How::Here {
        differs: &[
            BATCH_DIFFERS,
            "Two client processes on one processor, and no Ethernet between them and the server: only what batches are \
             worth is measured, not what RoCE costs. Batches of 2 to 24; each point is one repetition.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for size in BATCHES {
        for (series, preset) in [(RF_RPC_BATCH, "rf-rpc"), (SERVER_REPLY_BATCH, "server-reply")] {
            let task = CallTask { clients: 2, ..batched(preset, size) };
            trials.push(Trial::scattered(series, task, |sample: &Sample| {
                (sample.round_mean_us, sample.mops())
            }));
        }
    }
    trials
}
