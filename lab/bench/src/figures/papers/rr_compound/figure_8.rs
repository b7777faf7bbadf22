//! Five connection methods in gRPC, saturated and at a limited rate: a panel each for throughput and processor time.

use super::{GRPC_DIFFERS, METHODS, PAPER, crowd, four_kib};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use std::time::Duration;

const SATURATED_ID: &str = "D.8a";
pub(super) const RATE_ID: &str = SATURATED_ID;
pub(super) const LIMITED_CPU_ID: &str = "D.8d";
/// Largest number of clients.
pub(super) const CLIENTS_MAX: f64 = 128.0;
const CLIENTS: [usize; 4] = [4, 32, 64, 128];
const LIMITED_INTERVAL: Duration = Duration::from_micros(400);

const fn panel(
    id: &'static str,
    title: &'static str,
    y: Axis,
    published: &'static [Published],
    statements: &'static [&'static str],
    conditions: &'static str,
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 8, section IV-E",
        title,
        x: Axis::logarithmic("clients", ""),
        y,
        published,
        statements,
        conditions,
        how: How::Here { differs: &[GRPC_DIFFERS], trials },
        file: file!(),
    }
}

const SATURATED_CONDITIONS: &str = "4 KB each way, without a pause. BP has a thread for each client, the others 40, and 64 for 64 and 128 clients.";
const LIMITED_CONDITIONS: &str = "4 KB each way, each client sends 400 µs after an answer.";

pub(super) const SATURATED: Experiment = panel(
    SATURATED_ID,
    "Five connection methods in gRPC, saturated: throughput",
    Axis::logarithmic("calls", "thousand/s"),
    &[
        Published {
            series: "BP",
            points: &[(Some(4.0), 132.0), (Some(32.0), 812.0), (Some(64.0), 598.0)],
            source: "section IV-E",
        },
        Published {
            series: "BPTS",
            points: &[(Some(4.0), 135.0), (Some(32.0), 785.0)],
            source: "section IV-E",
        },
        Published {
            series: "BPEV",
            points: &[(Some(4.0), 120.0), (Some(32.0), 620.0), (Some(128.0), 1_417.0)],
            source: "section IV-E",
        },
        Published { series: "IPoIB", points: &[(Some(32.0), 367.0)], source: "section IV-E" },
        Published { series: "EVENT", points: &[(Some(32.0), 413.0)], source: "section IV-E" },
    ],
    &[
        "With 4 clients IPoIB and EVENT stay below 50 thousand; with 64 BPTS and BPEV are above 790.",
        "With 128 clients BPEV is 49 % above BPTS.",
    ],
    SATURATED_CONDITIONS,
    || {
        let limits = Trial::limits_of_one(Sample::kops);
        limits.into_iter().chain(methods(Duration::ZERO, Sample::kops)).collect()
    },
);

pub(super) const SATURATED_CPU: Experiment = panel(
    "D.8b",
    "Five connection methods in gRPC, saturated: the server’s processor time",
    Axis::logarithmic("processor time", "µs for each call"),
    &[],
    &[
        "With 32 clients 71 and 73 % of the time is idle under IPoIB and EVENT.",
        "With 128 clients BP spends 148 s in user space, 1.8 times as long as BPTS and 2.3 times as long as BPEV.",
    ],
    SATURATED_CONDITIONS,
    || methods(Duration::ZERO, Sample::server_us_per_op),
);

pub(super) const LIMITED: Experiment = panel(
    "D.8c",
    "Five connection methods in gRPC, 400 µs between calls: throughput",
    Axis::logarithmic("calls", "thousand/s"),
    &[
        Published { series: "BP", points: &[(Some(128.0), 94.0)], source: "section IV-E" },
        Published { series: "IPoIB", points: &[(Some(128.0), 228.0)], source: "section IV-E" },
    ],
    &["With 128 clients BP is the slowest, IPoIB the next."],
    LIMITED_CONDITIONS,
    || methods(LIMITED_INTERVAL, Sample::kops),
);

pub(super) const LIMITED_CPU: Experiment = panel(
    LIMITED_CPU_ID,
    "Five connection methods in gRPC, 400 µs between calls: the server’s processor time",
    Axis::logarithmic("processor time", "µs for each call"),
    &[],
    &["BP is busy 2.8 and 15.2 times as long as BPTS and BPEV; BPEV is as thrifty as EVENT."],
    LIMITED_CONDITIONS,
    || methods(LIMITED_INTERVAL, Sample::server_us_per_op),
);

fn methods(interval: Duration, y: fn(&Sample) -> f64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for clients in CLIENTS {
        for (series, way) in METHODS {
            trials.push(crowd(series, clients as f64, four_kib(way, clients, interval), y));
        }
    }
    trials
}
