//! Number of pollers that BPEV needs: a panel for many slow clients and one for a few that saturate the server.

use super::{GRPC_DIFFERS, PAPER, crowd};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::{Calls, CrowdTask};
use crate::streams::Way;
use std::time::Duration;

const POLLERS: [usize; 5] = [1, 2, 3, 4, 8];
pub(super) const HIGH_ID: &str = "D.11b";
pub(super) const SATURATED: &str = "64 clients";
const MEDIAN: &str = "median";
const P99: &str = "P99";
const DIFFERS: &str = "\
     Each of the 320 clients calls 100 ms after an answer, not all at the same time; each of the 64 has 32 messages of a \
     bidirectional call under way. One worker, which shares a core with the pollers.";

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
        place: "figure 11, section V-B",
        title,
        x: Axis::linear("pollers", ""),
        y,
        published,
        statements,
        conditions,
        how: How::Here { differs: &[GRPC_DIFFERS, DIFFERS], trials },
        file: file!(),
    }
}

pub(super) const LOW: Experiment = panel(
    "D.11a",
    "Pollers of BPEV with 320 slow clients: latency",
    Axis::logarithmic("latency", "µs"),
    &[
        Published { series: MEDIAN, points: &[(Some(1.0), 24.03)], source: "section V-B" },
        Published { series: P99, points: &[(Some(1.0), 29.82)], source: "section V-B" },
    ],
    &["More pollers change the latency by less than 5 µs: under low load one is enough."],
    "320 clients whose requests follow an exponential distribution of rate 1; 32 workers.",
    || {
        let mut trials = Vec::from(Trial::limits_of_one(Sample::p50_us));
        for pollers in POLLERS {
            let usual = CrowdTask::of(Way::Bpev, Calls::Stream { in_flight: 1 }, 32, 8);
            let task = CrowdTask { clients: 320, interval: Duration::from_millis(100), pollers, ..usual };
            trials.push(crowd(MEDIAN, pollers as f64, task, Sample::p50_us));
            trials.push(crowd(P99, pollers as f64, task, Sample::p99_us));
        }
        trials
    },
);

pub(super) const HIGH: Experiment = panel(
    HIGH_ID,
    "Pollers of BPEV with 64 saturated clients: throughput",
    Axis::linear("calls", "million/s"),
    &[Published {
        series: SATURATED,
        points: &[(Some(1.0), 2.8), (Some(2.0), 3.8), (Some(3.0), 4.0)],
        source: "section V-B",
    }],
    &["Beyond three pollers the throughput hardly changes."],
    "64 clients that call without a pause; 40 cores.",
    || {
        let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
        for pollers in POLLERS {
            let usual = CrowdTask::of(Way::Bpev, Calls::Stream { in_flight: 32 }, 32, 8);
            let task = CrowdTask { clients: 64, pollers, ..usual };
            trials.push(crowd(SATURATED, pollers as f64, task, Sample::mops));
        }
        trials
    },
);
