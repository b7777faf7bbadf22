//! Many queue pairs polled by one thread, under uniform and skewed load.

use super::{PAPER, usual_load};
use crate::experiments::kv_main::FrontEnd;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::workload::Distribution;

const UNIFORM: &str = "uniform";
const SKEWED: &str = "Zipf .99";
const QPS: [u32; 4] = [1, 3, 14, 42];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "A.11",
    place: "figure 11, section 5.5",
    title: "Several queue pairs polled by one server thread",
    x: Axis::linear("queue pairs of the thread", ""),
    y: Axis::linear("requests", "million/s"),
    published: &[Published {
        series: UNIFORM,
        points: &[(None, 4.73)],
        source: "section 5.5: 14 threads with 3 queue pairs each, together",
    }],
    statements: &[
        "About 1.51 times as much as with a thread for each queue pair (figure 12).",
        "Skewed keys load threads unevenly, but the sum is the same.",
    ],
    conditions: "42 clients, 14 server threads, 32-byte values, 95 % GET.",
    how: How::Here {
        differs: &[
            super::STORE_DIFFERS,
            "One server thread, with 1 to 42 queue pairs: 14 threads need as many cores. So unevenly loaded threads are \
             not measured, only a skew of keys within one.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for qps in QPS {
        for (series, distribution) in [(UNIFORM, Distribution::Uniform), (SKEWED, Distribution::Zipfian)] {
            let task = usual_load(FrontEnd::RfRpc, distribution, qps);
            trials.push(Trial::at(series, qps.into(), task, Sample::mops));
        }
    }
    trials
}
