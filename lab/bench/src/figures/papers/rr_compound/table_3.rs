//! Latency of small calls compared with mRPC.

use super::{GRPC, GRPC_DIFFERS, PAPER, RR_COMPOUND, crowd};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::{Calls, CrowdTask};
use crate::streams::Way;

pub(super) const ID: &str = "D.table-3";

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "table III, section V-A",
    title: "Round trips of small calls, beside mRPC",
    x: Axis::linear("50: median; 99: P99", ""),
    y: Axis::logarithmic("round trip", "µs"),
    published: &[
        Published {
            series: RR_COMPOUND,
            points: &[(Some(50.0), 7.22), (Some(99.0), 7.33)],
            source: "table III",
        },
        Published {
            series: "mRPC",
            points: &[(Some(50.0), 10.16), (Some(99.0), 12.76)],
            source: "table III",
        },
    ],
    statements: &["RR-Compound is 1.41 times as fast as mRPC in the median, 1.74 times at P99."],
    conditions: "64 B requests, 8 B answers, one at a time.",
    how: How::Here {
        differs: &[
            GRPC_DIFFERS,
            "One message of a bidirectional call at a time; tonic over TCP beside it, and the same with both ends \
             polling. mRPC’s numbers are the paper’s.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::p50_us));
    for (series, way) in [(GRPC, Way::Tcp), (RR_COMPOUND, Way::Bpev), ("BPTS", Way::Bpts)] {
        let task = CrowdTask::of(way, Calls::Stream { in_flight: 1 }, 64, 8);
        trials.push(crowd(series, 50.0, task, Sample::p50_us));
        trials.push(crowd(series, 99.0, task, Sample::p99_us));
    }
    trials
}
