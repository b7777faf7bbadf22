//! Encoding into the ring, compared with encoding into other memory.

use super::{GRPC_DIFFERS, PAPER, crowd, gbit_per_second};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::Trial;
use crate::grpc::{Calls, CrowdTask};
use crate::streams::Way;

pub(super) const ID: &str = "D.14";
pub(super) const WITHOUT: &str = "without zero copy";
pub(super) const WITH: &str = "with zero copy";
pub(super) const LENS_KIB: [usize; 6] = [4, 16, 60, 64, 128, 256];

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: ID,
    place: "figure 14, section V-C",
    title: "Bandwidth with zero copy and without, by payload",
    x: Axis::logarithmic("payload", "KB"),
    y: Axis::logarithmic("bandwidth of requests", "Gb/s"),
    published: &[
        Published { series: WITHOUT, points: &[(Some(64.0), 32.0)], source: "section V-C" },
        Published { series: WITH, points: &[(Some(64.0), 36.0)], source: "section V-C" },
    ],
    statements: &["Zero copy brings 12.5 % at 64 KB, 16.4 % at 128 KB, 4.5 % at 256 KB."],
    conditions: "One client.",
    how: How::Here {
        differs: &[
            GRPC_DIFFERS,
            "Without: tonic’s codec. With: the generator of farcall-grpc-build, which encodes into the ring what \
             fits into one frame of 64 KiB with its metadata; longer messages are encoded beside it and copied. One \
             call at a time, as much back, both ends polling.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::limit_of_bandwidth_in(8.0)];
    for len_kib in LENS_KIB {
        for (series, calls) in [(WITHOUT, Calls::Unary), (WITH, Calls::Direct)] {
            let task = CrowdTask::of(Way::Bpts, calls, len_kib << 10, len_kib << 10);
            trials.push(crowd(series, len_kib as f64, task, gbit_per_second));
        }
    }
    trials
}
