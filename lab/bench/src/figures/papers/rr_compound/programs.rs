//! D: RR-Compound; experiments with a key-value service and with TensorFlow.

use super::{BLANK, GRPC, GRPC_DIFFERS, RR_COMPOUND};
use crate::figures::channels::Channel;
use crate::figures::experiment::{Axis, Experiment, published};
use crate::figures::sample::Sample;
use crate::figures::trial::{Trial, sweep, sweep_beside};
use crate::grpc::{Preset, YcsbTask};
use crate::streams::WaitMode;
use crate::training::{Carrier, Model, Training};
use crate::workload::Workload;

/// Differences of all measurements of the key-value service.
const YCSB_DIFFERS: &str = "The store is an LSM tree in Rust (fjall) instead of Jungle; what is written is in the \
                            system’s memory when it is answered. The clients are Rust, not YCSB’s Java over JNI. \
                            20,000 records and operations as in the paper, so that all records stay in the tree’s \
                            memory.";

/// Number of clients of the experiments that compare workloads.
const CLIENTS: usize = 32;
/// Workloads by their place on the axis.
const WORKLOADS: [(f64, Workload); 6] = [
    (1.0, Workload::A),
    (2.0, Workload::B),
    (3.0, Workload::C),
    (4.0, Workload::D),
    (5.0, Workload::E),
    (6.0, Workload::F),
];
/// Statement of the paper about A, B, E and F.
const DROPS: &[&str] = &["From 64 to 128 clients gRPC’s throughput drops."];

/// YCSB by the number of clients: a panel for each workload.
const FIGURE_17: Experiment = Experiment {
    place: "figure 17, table IV, section V-E",
    x: Axis::logarithmic("clients", ""),
    y: Axis::logarithmic("operations", "thousand/s"),
    conditions: "YCSB’s client over JNI, Jungle behind the server, 20,000 records and operations, 40 threads at the \
                 server, and 64 from 64 clients on.",
    differs: &[GRPC_DIFFERS, YCSB_DIFFERS],
    ..BLANK
};

/// Experiments in the paper's order.
pub(in crate::figures::papers) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "D.17a",
        title: "YCSB A: 50 % reads, 50 % updates",
        statements: DROPS,
        trials: || systems(Workload::A),
        ..FIGURE_17
    },
    Experiment {
        id: "D.17b",
        title: "YCSB B: 95 % reads, 5 % updates",
        statements: DROPS,
        trials: || systems(Workload::B),
        ..FIGURE_17
    },
    Experiment {
        id: "D.17c",
        title: "YCSB C: reads",
        published: &[
            published(
                GRPC,
                &[(Some(4.0), 28.0), (Some(64.0), 303.0)],
                "section V-E; as many with 128 clients as with 64",
            ),
            published(RR_COMPOUND, &[(Some(4.0), 49.0), (Some(128.0), 535.0)], "section V-E"),
        ],
        statements: &["B and C have the highest rates: reading takes little time."],
        trials: || systems(Workload::C),
        ..FIGURE_17
    },
    Experiment {
        id: "D.17d",
        title: "YCSB D: 95 % reads of the latest, 5 % inserts",
        trials: || systems(Workload::D),
        ..FIGURE_17
    },
    Experiment {
        id: "D.17e",
        title: "YCSB E: 95 % scans, 5 % inserts",
        statements: DROPS,
        trials: || systems(Workload::E),
        ..FIGURE_17
    },
    Experiment {
        id: "D.17f",
        title: "YCSB F: 50 % reads, 50 % read-modify-writes",
        statements: DROPS,
        trials: || systems(Workload::F),
        ..FIGURE_17
    },
    Experiment {
        id: "D.18",
        place: "figure 18, section V-E",
        title: "YCSB: median latencies of reads and writes, by workload",
        x: Axis::linear("workload, 1: A to 6: F", ""),
        y: Axis::logarithmic("median latency", "µs"),
        statements: &[
            "The latency is 10.25 to 46.92 % lower than gRPC’s.",
            "Only inserts of E with more than 64 clients are slower than gRPC’s: faster scans take the cores from \
             them.",
            "Latencies of reads are flat from 4 to 32 clients, and rise from there on.",
        ],
        conditions: "As figure 17; a panel for each workload and kind of operation, by the number of clients.",
        differs: &[
            GRPC_DIFFERS,
            YCSB_DIFFERS,
            "With 32 clients alone. Scans are reads; a read-modify-write is a write.",
        ],
        trials: || {
            let mut trials = Vec::from(Trial::limits_of_one(Sample::p50_us));
            for (x, workload) in WORKLOADS {
                let systems = [
                    ("gRPC, reads", "gRPC, writes", Preset::Tcp),
                    ("RR-Compound, reads", "RR-Compound, writes", Preset::Waits(WaitMode::Bpev)),
                ];
                for (reads, writes, preset) in systems {
                    let channel = Channel::Ycsb(ycsb(preset, workload, CLIENTS));
                    trials.push(Trial::at(reads, x, channel, Sample::p50_us));
                    // Workload C has no writes.
                    if workload != Workload::C {
                        trials.push(Trial::at(writes, x, channel, |sample| sample.writes_p50_us));
                    }
                }
            }
            trials
        },
        ..BLANK
    },
    Experiment {
        id: "D.table-5",
        place: "table V, section V-E",
        title: "YCSB: throughput over gRPC’s",
        x: Axis::linear("workload, 1: A to 6: F", ""),
        y: Axis::linear("throughput", "times gRPC’s"),
        published: &[published(
            RR_COMPOUND,
            &[
                (Some(1.0), 1.63),
                (Some(2.0), 2.24),
                (Some(3.0), 2.04),
                (Some(4.0), 2.33),
                (Some(5.0), 1.97),
                (Some(6.0), 2.35),
            ],
            "table V",
        )],
        statements: &["RR-Compound is faster than gRPC under every workload."],
        conditions: "As figure 17; the paper does not say of how many clients.",
        differs: &[
            GRPC_DIFFERS,
            YCSB_DIFFERS,
            "With 32 clients. Beside BPEV the native transport with both ends polling, and with unary calls that do \
             without tonic’s codec. No bare limit: these are ratios.",
        ],
        trials: || {
            let curves = [
                (RR_COMPOUND, Preset::Waits(WaitMode::Bpev)),
                ("native, polling", Preset::Native),
                ("direct, polling", Preset::Direct),
            ];
            sweep_beside([], &WORKLOADS, &curves, Sample::per_second, |(_, workload), preset| {
                Channel::OverTcp(ycsb(preset, workload, CLIENTS))
            })
        },
        ..BLANK
    },
    Experiment {
        id: "D.19",
        place: "figure 19, section V-F",
        title: "TensorFlow: images a second, by model",
        x: Axis::linear("model, 1: Inception, 2: AlexNet, 3: ResNet", ""),
        y: Axis::linear("images", "1/s"),
        statements: &[
            "Over gRPC, with 4, 8 and 12 nodes: Inception4 9.8, 14.7 and 14.8 % more, AlexNet 17.6, 18.9 and 20.3 %, \
             ResNet50 14.5, 16.8 and 29.6 %.",
            "Communication takes 8 to 60 % of the time, of YCSB at least 77 %.",
        ],
        conditions: "TensorFlow 2.8 in parameter-server mode, its CNN benchmark with synthetic images, up to 12 nodes \
                     with 2 Xeon E5-2680 v4, ConnectX-5 and Tesla V100.",
        differs: &[
            "TensorFlow as it is installed here, unmodified: its gRPC over TCP, and the same processes under farcall \
             run. The losses of the first steps must be the same to the last bit.",
            "One parameter server, two workers and the chief on the two cores of one host; small models like the \
             paper’s three, 8 images of 32 by 32 pixels a step: 8.5 MB of variables of AlexNet’s, 0.4 of Inception’s, \
             1.2 of ResNet’s.",
        ],
        trials: || {
            let models = [(1.0, Model::ALL[0]), (2.0, Model::ALL[1]), (3.0, Model::ALL[2])];
            let curves = [("gRPC", Carrier::Tcp), ("farcall run", Carrier::FarcallRun)];
            sweep_beside([], &models, &curves, Sample::per_second, |(_, model), carrier| Training {
                model,
                carrier,
            })
        },
        ..BLANK
    },
];

/// Returns a workload of the paper's size.
fn ycsb(preset: Preset, workload: Workload, clients: usize) -> YcsbTask {
    YcsbTask { preset, workload, clients, records: 20_000, operations: 20_000 }
}

fn systems(workload: Workload) -> Vec<Trial> {
    let curves = [(GRPC, Preset::Tcp), (RR_COMPOUND, Preset::Waits(WaitMode::Bpev))];
    sweep(&[4, 32, 64, 128], &curves, Sample::kops, |clients, preset| {
        Channel::Ycsb(ycsb(preset, workload, clients))
    })
}
