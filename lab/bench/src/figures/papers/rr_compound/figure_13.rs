//! Polling time of a BPEV worker before it sleeps: a panel for throughput and one for latency.

use super::{GRPC_DIFFERS, PAPER, RR_COMPOUND, crowd};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::{Calls, CrowdTask};
use crate::streams::Way;

pub(super) const THROUGHPUT_ID: &str = "D.13a";
/// Polling time in µs from which the paper observes no further improvement.
pub(super) const ENOUGH_US: f64 = 6.0;
const TIMEOUTS_US: [u32; 9] = [0, 1, 2, 4, 6, 10, 20, 50, 100];

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
        place: "figure 13, section V-B",
        title,
        x: Axis::linear("bp_timeout", "µs"),
        y,
        published,
        statements: &[
            "From 6 µs on the throughput is stable: bp_timeout should be slightly longer than a usual round trip.",
        ],
        conditions: "One client.",
        how: How::Here {
            differs: &[
                GRPC_DIFFERS,
                "32 B there and 8 B back, one message of a bidirectional call at a time; the same bp_timeout at both ends.",
            ],
            trials,
        },
        file: file!(),
    }
}

pub(super) const THROUGHPUT: Experiment = panel(
    THROUGHPUT_ID,
    "BPEV by bp_timeout: throughput",
    Axis::linear("calls", "thousand/s"),
    &[Published {
        series: RR_COMPOUND,
        points: &[(Some(0.0), 78.0), (Some(6.0), 252.0)],
        source: "section V-B",
    }],
    || Trial::limits_of_one(Sample::kops).into_iter().chain(timeouts(Sample::kops)).collect(),
);

pub(super) const LATENCY: Experiment = panel(
    "D.13b",
    "BPEV by bp_timeout: latency",
    Axis::linear("median latency", "µs"),
    &[Published {
        series: RR_COMPOUND,
        points: &[(Some(0.0), 17.07), (Some(6.0), 6.8)],
        source: "section V-B",
    }],
    || Trial::limits_of_one(Sample::p50_us).into_iter().chain(timeouts(Sample::p50_us)).collect(),
);

fn timeouts(y: fn(&Sample) -> f64) -> Vec<Trial> {
    let of = |timeout_us| {
        let usual = CrowdTask::of(Way::Bpev, Calls::Stream { in_flight: 1 }, 32, 8);
        let task = CrowdTask { bp_timeout_us: Some(timeout_us), ..usual };
        crowd(RR_COMPOUND, timeout_us.into(), task, y)
    };
    TIMEOUTS_US.map(of).into()
}
