//! YCSB by the number of clients: a panel for each workload.

use super::{GRPC, GRPC_DIFFERS, PAPER, RR_COMPOUND, YCSB_DIFFERS, workload};
use crate::figures::channels::Channel;
use crate::figures::experiment::{Axis, Experiment, How, Published};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::Preset;
use crate::streams::Way;
use crate::workload::Workload;

const CLIENTS: [usize; 4] = [4, 32, 64, 128];

const fn panel(
    id: &'static str,
    title: &'static str,
    published: &'static [Published],
    statements: &'static [&'static str],
    trials: fn() -> Vec<Trial>,
) -> Experiment {
    Experiment {
        paper: &PAPER,
        id,
        place: "figure 17, table IV, section V-E",
        title,
        x: Axis::logarithmic("clients", ""),
        y: Axis::logarithmic("operations", "thousand/s"),
        published,
        statements,
        conditions: "YCSB’s client over JNI, Jungle behind the server, 20,000 records and operations, 40 threads at \
                     the server, and 64 from 64 clients on.",
        how: How::Here { differs: &[GRPC_DIFFERS, YCSB_DIFFERS], trials },
        file: file!(),
    }
}

/// Statement of the paper about A, B, E and F.
const DROPS: &[&str] = &["From 64 to 128 clients gRPC’s throughput drops."];

pub(super) const A: Experiment =
    panel("D.17a", "YCSB A: 50 % reads, 50 % updates", &[], DROPS, || systems(Workload::A));
pub(super) const B: Experiment =
    panel("D.17b", "YCSB B: 95 % reads, 5 % updates", &[], DROPS, || systems(Workload::B));
pub(super) const C: Experiment = panel(
    "D.17c",
    "YCSB C: reads",
    &[
        Published {
            series: GRPC,
            points: &[(Some(4.0), 28.0), (Some(64.0), 303.0)],
            source: "section V-E; as many with 128 clients as with 64",
        },
        Published {
            series: RR_COMPOUND,
            points: &[(Some(4.0), 49.0), (Some(128.0), 535.0)],
            source: "section V-E",
        },
    ],
    &["B and C have the highest rates: reading takes little time."],
    || systems(Workload::C),
);
pub(super) const D: Experiment =
    panel("D.17d", "YCSB D: 95 % reads of the latest, 5 % inserts", &[], &[], || systems(Workload::D));
pub(super) const E: Experiment =
    panel("D.17e", "YCSB E: 95 % scans, 5 % inserts", &[], DROPS, || systems(Workload::E));
pub(super) const F: Experiment =
    panel("D.17f", "YCSB F: 50 % reads, 50 % read-modify-writes", &[], DROPS, || systems(Workload::F));

fn systems(mix: Workload) -> Vec<Trial> {
    let mut trials = Vec::from(Trial::limits_of_one(Sample::kops));
    for clients in CLIENTS {
        for (series, preset) in [(GRPC, Preset::Tcp), (RR_COMPOUND, Preset::Waits(Way::Bpev))] {
            let channel = Channel::Ycsb(workload(preset, mix, clients));
            trials.push(Trial::at(series, clients as f64, channel, Sample::kops));
        }
    }
    trials
}
