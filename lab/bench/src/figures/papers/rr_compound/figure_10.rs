//! Scalability compared with mRPC.

use super::{GRPC, GRPC_DIFFERS, PAPER, RR_COMPOUND, SYSTEMS, crowd};
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::{Calls, CrowdTask};

const CLIENTS: [usize; 6] = [1, 8, 16, 32, 64, 128];
/// Outstanding calls of each client.
const IN_FLIGHT: usize = 32;

pub(super) const EXPERIMENT: Experiment = Experiment {
    paper: &PAPER,
    id: "D.10",
    place: "figure 10, section V-A",
    title: "Small calls by the number of clients, beside mRPC",
    x: Axis::logarithmic("clients", ""),
    y: Axis::logarithmic("calls", "million/s"),
    published: &[
        Published {
            series: RR_COMPOUND,
            points: &[(Some(1.0), 0.242), (Some(8.0), 1.55), (Some(32.0), 2.86), (Some(64.0), 5.65)],
            source: "section V-A",
        },
        Published {
            series: "mRPC",
            points: &[
                (Some(1.0), 0.82),
                (Some(8.0), 4.66),
                (Some(16.0), 8.67),
                (Some(32.0), 7.76),
                (Some(64.0), 4.92),
            ],
            source: "section V-A",
        },
    ],
    statements: &[
        "With 128 clients RR-Compound loses 7 % of its peak; mRPC fails.",
        "Eight clients make 6.41 times the calls of one, mRPC’s 5.68 times.",
    ],
    conditions: "32 B requests, 8 B answers, 32 calls under way of each client, gRPC’s streaming; BPEV with 38 \
                 workers, 2 pollers and a bp_timeout of 100 µs.",
    how: How::Here {
        differs: &[
            GRPC_DIFFERS,
            "mRPC is not measured: its numbers are the paper’s. bp_timeout is measured, up to 50 µs; one poller.",
        ],
        trials,
    },
    file: file!(),
};

fn trials() -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::mops));
    for clients in CLIENTS {
        for (series, way) in SYSTEMS {
            let calls = Calls::Stream { in_flight: IN_FLIGHT };
            let task = CrowdTask { clients, ..CrowdTask::of(way, calls, 32, 8) };
            trials.push(crowd(
                if series == GRPC { "gRPC, streaming" } else { series },
                clients as f64,
                task,
                Sample::mops,
            ));
        }
    }
    trials
}
