//! The size of rings.

use super::{GRPC_DIFFERS, PAPER, crowd, gbit_per_second};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::Trial;
use crate::grpc::{Calls, CrowdTask};
use crate::streams::Way;

pub(super) const ID: &str = "D.12";
pub(super) const SHORT: &str = "8 KB";
pub(super) const LONG: &str = "128 KB";
const RINGS_KIB: [usize; 6] = [32, 64, 128, 256, 1_024, 4_096];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 12, section V-B",
    title: "Bandwidth by the size of rings",
    x: Axis::logarithmic("ring", "KB"),
    y: Axis::logarithmic("bandwidth of requests", "Gb/s"),
    published: &[
        Published { series: SHORT, points: &[(Some(32.0), 8.1)], source: "section V-B" },
        Published { series: LONG, points: &[(Some(32.0), 16.2)], source: "section V-B" },
    ],
    statements: &[
        "For calls of 8 KB longer rings bring nothing; for 128 KB 256 KB bring more than twice what 32 KB do.",
        "4 MB are chosen, gRPC’s limit of messages.",
    ],
    conditions: "Calls of 8 and 128 KB through receive rings of 32 KB and longer.",
    how: How::Here {
        differs: &[
            GRPC_DIFFERS,
            "One client, one call at a time, as much back. The rings of both ends do not grow.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth_in(8.0)];
    for ring_kib in RINGS_KIB {
        for (series, len_bytes) in [(SHORT, 8 << 10), (LONG, 128 << 10)] {
            let usual = CrowdTask::of(Way::Bpev, Calls::Unary, len_bytes, len_bytes);
            let task = CrowdTask { ring_bytes: Some(ring_kib << 10), ..usual };
            trials.push(crowd(series, ring_kib as f64, task, gbit_per_second));
        }
    }
    trials
}
