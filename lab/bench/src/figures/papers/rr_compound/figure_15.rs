//! Processor time and memory of the server under heavy load, a panel each.

use super::{GRPC_DIFFERS, PAPER, SYSTEMS, crowd, four_kib};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use std::time::Duration;

const CLIENTS: &[usize] = &[1, 4, 16, 64, 128];
const INTERVAL: Duration = Duration::ZERO;

const fn panel(
    id: &'static str,
    title: &'static str,
    y: Axis,
    published: &'static [Published],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 15, section V-D",
        title,
        x: Axis::logarithmic("clients", ""),
        y,
        published,
        statements: &[
            "RR-Compound uses 1.12 to 5.80 times the processor time, and 4.4 to 8.2 times the memory for each client.",
        ],
        conditions: "As figure 8 and the YCSB runs: clients without a pause.",
        how: How::Here {
            differs: &[
                GRPC_DIFFERS,
                "Calls of 4 KiB each way without a pause. Memory is what is resident of the server’s process, its \
                 rings included; they begin with 32 KiB and grow to 4 MiB where a peer fills them.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const CPU: Experiment = panel(
    "D.15a",
    "The server’s processor time under heavy load",
    Axis::linear("processor time", "cores"),
    &[],
    || systems(Sample::server_cores),
);

pub(super) const MEMORY: Experiment = panel(
    "D.15b",
    "The server’s memory for each client under heavy load",
    Axis::logarithmic("memory for each client", "MiB"),
    &[],
    || systems(|sample| sample.memory_mib_per_client),
);

fn systems(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for clients in CLIENTS {
        for (series, way) in SYSTEMS {
            trials.push(crowd(series, *clients as f64, four_kib(way, *clients, INTERVAL), y));
        }
    }
    trials
}
