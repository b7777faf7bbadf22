//! Latencies of YCSB's operations.

use super::{GRPC_DIFFERS, PAPER, YCSB_DIFFERS, workload};
use crate::figures::channels::Channel;
use crate::figures::experiment::{Axis, Experiment, How};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::Preset;
use crate::streams::Way;
use crate::workload::Workload;

const CLIENTS: usize = 32;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "D.18",
    place: "figure 18, section V-E",
    title: "YCSB: median latencies of reads and writes, by workload",
    x: Axis::linear("workload, 1: A to 6: F", ""),
    y: Axis::logarithmic("median latency", "µs"),
    published: &[],
    statements: &[
        "The latency is 10.25 to 46.92 % lower than gRPC’s.",
        "Only inserts of E with more than 64 clients are slower than gRPC’s: faster scans take the cores from them.",
        "Latencies of reads are flat from 4 to 32 clients, and rise from there on.",
    ],
    conditions: "As figure 17; a panel for each workload and kind of operation, by the number of clients.",
    how: How::Here {
        differs: &[
            GRPC_DIFFERS,
            YCSB_DIFFERS,
            "With 32 clients alone. Scans are reads; a read-modify-write is a write.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::p50_us));
    for (at, mix) in Workload::ALL.into_iter().enumerate() {
        let systems = [
            ("gRPC, reads", "gRPC, writes", Preset::Tcp),
            ("RR-Compound, reads", "RR-Compound, writes", Preset::Waits(Way::Bpev)),
        ];
        for (reads, writes, preset) in systems {
            let (x, channel) = (at as f64 + 1.0, Channel::Ycsb(workload(preset, mix, CLIENTS)));
            trials.push(Trial::at(reads, x, channel, Sample::p50_us));
            // Workload C has no writes.
            if mix != Workload::C {
                trials.push(Trial::at(writes, x, channel, |sample| sample.writes_p50_us));
            }
        }
    }
    trials
}
