//! Gain of RR-Compound under YCSB.

use super::{GRPC_DIFFERS, PAPER, RR_COMPOUND, YCSB_DIFFERS, workload};
use crate::figures::channels::Channel;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::Trial;
use crate::grpc::Preset;
use crate::streams::Way;
use crate::workload::Workload;

pub(super) const ID: &str = "D.table-5";
const CLIENTS: usize = 32;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "table V, section V-E",
    title: "YCSB: throughput over gRPC’s",
    x: Axis::linear("workload, 1: A to 6: F", ""),
    y: Axis::linear("throughput", "times gRPC’s"),
    published: &[Published {
        series: RR_COMPOUND,
        points: &[
            (Some(1.0), 1.63),
            (Some(2.0), 2.24),
            (Some(3.0), 2.04),
            (Some(4.0), 2.33),
            (Some(5.0), 1.97),
            (Some(6.0), 2.35),
        ],
        source: "table V",
    }],
    statements: &["RR-Compound is faster than gRPC under every workload."],
    conditions: "As figure 17; the paper does not say of how many clients.",
    how: How::Here {
        differs: &[
            GRPC_DIFFERS,
            YCSB_DIFFERS,
            "With 32 clients. Beside BPEV the native transport with both ends polling, and with unary calls that do \
             without tonic’s codec. No bare limit: these are ratios.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, mix) in Workload::ALL.into_iter().enumerate() {
        for (series, preset) in [
            (RR_COMPOUND, Preset::Waits(Way::Bpev)),
            ("native, polling", Preset::Native),
            ("direct, polling", Preset::Direct),
        ] {
            let channel = Channel::OverTcp(workload(preset, mix, CLIENTS));
            trials.push(Trial::at(series, at as f64 + 1.0, channel, |sample| sample.line.per_second));
        }
    }
    trials
}
