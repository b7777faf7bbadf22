//! Processor time and memory of the server under low load, a panel each.

use super::{GRPC, GRPC_DIFFERS, PAPER, RR_COMPOUND, SYSTEMS, crowd, four_kib};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use std::time::Duration;

const CLIENTS: &[usize] = &[1, 4, 16, 64];
const INTERVAL: Duration = Duration::from_millis(10);

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
        place: "figure 16, section V-D",
        title,
        x: Axis::logarithmic("clients", ""),
        y,
        published,
        statements: &[
            "RR-Compound always uses both of its pollers’ cores; with more clients its memory for each nears 6 MB, those of its rings.",
        ],
        conditions: "A limit of the rate, of which the paper does not say how low it is; two pollers.",
        how: How::Here {
            differs: &[
                GRPC_DIFFERS,
                "Calls of 4 KiB each way, each client 10 ms after an answer; one poller, which sleeps when nothing \
                 moves. Memory is what is resident of the server’s process, its rings included; they begin with 32 \
                 KiB and grow to 4 MiB where a peer fills them.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const CPU: Experiment = panel(
    "D.16a",
    "The server’s processor time under low load",
    Axis::linear("processor time", "cores"),
    &[
        Published { series: GRPC, points: &[(None, 0.04)], source: "section V-D: 4 %" },
        Published { series: RR_COMPOUND, points: &[(None, 2.0)], source: "section V-D: 200 %" },
    ],
    || systems(Sample::server_cores),
);

pub(super) const MEMORY: Experiment = panel(
    "D.16b",
    "The server’s memory for each client under low load",
    Axis::logarithmic("memory for each client", "MiB"),
    &[
        Published { series: GRPC, points: &[(Some(1.0), 5.6)], source: "section V-D" },
        Published {
            series: RR_COMPOUND,
            points: &[(Some(1.0), 14.3), (Some(16.0), 6.7)],
            source: "section V-D",
        },
    ],
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
