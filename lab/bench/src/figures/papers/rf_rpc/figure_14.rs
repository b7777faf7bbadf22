//! Effect of the batch size on latency.

use super::{BATCH_DIFFERS, BATCHES, PAPER, RF_RPC_BATCH, SERVER_REPLY_BATCH, batched};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.14",
    place: "figure 14, section 5.6",
    title: "Latency by batch size",
    x: Axis::linear("calls in a batch", ""),
    y: Axis::linear("latency", "µs"),
    published: &[Published {
        series: RF_RPC_BATCH,
        points: &[(Some(4.0), 6.17)],
        source: "section 5.6; the text gives the latency of batches of 24 with figure 13",
    }],
    statements: &["Nearly linear; server-reply-batch is 18 % to 100 % slower."],
    conditions: "As in figure 13.",
    how: How::Here { differs: &[BATCH_DIFFERS], trials },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mean_us));
    for size in BATCHES {
        for (series, preset) in [(RF_RPC_BATCH, "rf-rpc"), (SERVER_REPLY_BATCH, "server-reply")] {
            trials.push(Trial::at(series, size.into(), batched(preset, size), |s| s.round_mean_us));
        }
    }
    trials
}
