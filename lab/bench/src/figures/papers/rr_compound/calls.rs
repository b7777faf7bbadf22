//! D: RR-Compound; experiments with gRPC calls.

use super::{BLANK, GRPC, GRPC_DIFFERS, RR_COMPOUND, gbit_per_second};
use crate::figures::experiment::{Axis, Experiment, published};
use crate::figures::sample::Sample;
use crate::figures::trial::{Trial, sweep, sweep_beside};
use crate::grpc::{Calls, ClientPoolTask};
use crate::streams::WaitMode;
use std::time::Duration;

/// Names of curves.
pub(super) const SATURATED: &str = "64 clients";
pub(super) const SHORT: &str = "8 KB";
pub(super) const LONG: &str = "128 KB";
pub(super) const WITHOUT: &str = "without zero copy";
pub(super) const WITH: &str = "with zero copy";
const MEDIAN: &str = "median";
const P99: &str = "P99";
pub(super) const METHODS: [(&str, WaitMode); 5] = [
    ("IPoIB", WaitMode::Tcp),
    ("BP", WaitMode::Bp),
    ("BPTS", WaitMode::Bpts),
    ("EVENT", WaitMode::Event),
    ("BPEV", WaitMode::Bpev),
];

/// The two systems of the second half of the evaluation.
const SYSTEMS: [(&str, WaitMode); 2] = [(GRPC, WaitMode::Tcp), (RR_COMPOUND, WaitMode::Bpev)];
const SATURATED_CONDITIONS: &str = "4 KB each mode, without a pause. BP has a thread for each client, the others 40, \
                                    and 64 for 64 and 128 clients.";
const LIMITED_CONDITIONS: &str = "4 KB each way, each client sends 400 µs after an answer.";
/// Numbers of pollers.
const POLLERS: [usize; 5] = [1, 2, 3, 4, 8];

/// Five connection methods in gRPC, saturated and at a limited rate: a panel each for throughput and processor time.
const FIGURE_8: Experiment = Experiment {
    place: "figure 8, section IV-E",
    x: Axis::logarithmic("clients", ""),
    differs: &[GRPC_DIFFERS],
    ..BLANK
};

/// Number of pollers that BPEV needs: a panel for many slow clients and one for a few that saturate the server.
const FIGURE_11: Experiment = Experiment {
    place: "figure 11, section V-B",
    x: Axis::linear("pollers", ""),
    differs: &[
        GRPC_DIFFERS,
        "Each of the 320 clients calls 100 ms after an answer, not all at the same time; each of the 64 has 32 \
         messages of a bidirectional call under mode. One worker, which shares a core with the pollers.",
    ],
    ..BLANK
};

/// Polling time of a BPEV worker before it sleeps: a panel for throughput and one for latency.
const FIGURE_13: Experiment = Experiment {
    place: "figure 13, section V-B",
    x: Axis::linear("bp_timeout", "µs"),
    statements: &[
        "From 6 µs on the throughput is stable: bp_timeout should be slightly longer than a usual round trip.",
    ],
    conditions: "One client.",
    differs: &[
        GRPC_DIFFERS,
        "32 B there and 8 B back, one message of a bidirectional call at a time; the same bp_timeout at both ends.",
    ],
    ..BLANK
};

/// Processor time and memory of the server under heavy load, a panel each.
const FIGURE_15: Experiment = Experiment {
    place: "figure 15, section V-D",
    x: Axis::logarithmic("clients", ""),
    statements: &[
        "RR-Compound uses 1.12 to 5.80 times the processor time, and 4.4 to 8.2 times the memory for each client.",
    ],
    conditions: "As figure 8 and the YCSB runs: clients without a pause.",
    differs: &[
        GRPC_DIFFERS,
        "Calls of 4 KiB each mode without a pause. Memory is what is resident of the server’s process, its rings \
         included; they begin with 32 KiB and grow to 4 MiB where a peer fills them.",
    ],
    ..BLANK
};

/// Processor time and memory of the server under low load, a panel each.
const FIGURE_16: Experiment = Experiment {
    place: "figure 16, section V-D",
    x: Axis::logarithmic("clients", ""),
    statements: &[
        "RR-Compound always uses both of its pollers’ cores; with more clients its memory for each nears 6 MB, those \
         of its rings.",
    ],
    conditions: "A limit of the rate, of which the paper does not say how low it is; two pollers.",
    differs: &[
        GRPC_DIFFERS,
        "Calls of 4 KiB each mode, each client 10 ms after an answer; one poller, which sleeps when nothing moves. \
         Memory is what is resident of the server’s process, its rings included; they begin with 32 KiB and grow to 4 \
         MiB where a peer fills them.",
    ],
    ..BLANK
};

/// Experiments in the paper's order.
pub(in crate::figures::papers) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "D.8a",
        title: "Five connection methods in gRPC, saturated: throughput",
        y: Axis::logarithmic("calls", "thousand/s"),
        published: &[
            published("BP", &[(Some(4.0), 132.0), (Some(32.0), 812.0), (Some(64.0), 598.0)], "section IV-E"),
            published("BPTS", &[(Some(4.0), 135.0), (Some(32.0), 785.0)], "section IV-E"),
            published(
                "BPEV",
                &[(Some(4.0), 120.0), (Some(32.0), 620.0), (Some(128.0), 1_417.0)],
                "section IV-E",
            ),
            published("IPoIB", &[(Some(32.0), 367.0)], "section IV-E"),
            published("EVENT", &[(Some(32.0), 413.0)], "section IV-E"),
        ],
        statements: &[
            "With 4 clients IPoIB and EVENT stay below 50 thousand; with 64 BPTS and BPEV are above 790.",
            "With 128 clients BPEV is 49 % above BPTS.",
        ],
        conditions: SATURATED_CONDITIONS,
        trials: || methods(Trial::limits_of_one(Sample::kops), 0, Sample::kops),
        ..FIGURE_8
    },
    Experiment {
        id: "D.8b",
        title: "Five connection methods in gRPC, saturated: the server’s processor time",
        y: Axis::logarithmic("processor time", "µs for each call"),
        statements: &[
            "With 32 clients 71 and 73 % of the time is idle under IPoIB and EVENT.",
            "With 128 clients BP spends 148 s in user space, 1.8 times as long as BPTS and 2.3 times as long as BPEV.",
        ],
        conditions: SATURATED_CONDITIONS,
        trials: || methods([], 0, Sample::server_us_per_op),
        ..FIGURE_8
    },
    Experiment {
        id: "D.8c",
        title: "Five connection methods in gRPC, 400 µs between calls: throughput",
        y: Axis::logarithmic("calls", "thousand/s"),
        published: &[
            published("BP", &[(Some(128.0), 94.0)], "section IV-E"),
            published("IPoIB", &[(Some(128.0), 228.0)], "section IV-E"),
        ],
        statements: &["With 128 clients BP is the slowest, IPoIB the next."],
        conditions: LIMITED_CONDITIONS,
        trials: || methods([], 400, Sample::kops),
        ..FIGURE_8
    },
    Experiment {
        id: "D.8d",
        title: "Five connection methods in gRPC, 400 µs between calls: the server’s processor time",
        y: Axis::logarithmic("processor time", "µs for each call"),
        statements: &["BP is busy 2.8 and 15.2 times as long as BPTS and BPEV; BPEV is as thrifty as EVENT."],
        conditions: LIMITED_CONDITIONS,
        trials: || methods([], 400, Sample::server_us_per_op),
        ..FIGURE_8
    },
    Experiment {
        id: "D.10",
        place: "figure 10, section V-A",
        title: "Small calls by the number of clients, compared with mRPC",
        x: Axis::logarithmic("clients", ""),
        y: Axis::logarithmic("calls", "million/s"),
        published: &[
            published(
                RR_COMPOUND,
                &[(Some(1.0), 0.242), (Some(8.0), 1.55), (Some(32.0), 2.86), (Some(64.0), 5.65)],
                "section V-A",
            ),
            published(
                "mRPC",
                &[
                    (Some(1.0), 0.82),
                    (Some(8.0), 4.66),
                    (Some(16.0), 8.67),
                    (Some(32.0), 7.76),
                    (Some(64.0), 4.92),
                ],
                "section V-A",
            ),
        ],
        statements: &[
            "With 128 clients RR-Compound loses 7 % of its peak; mRPC fails.",
            "Eight clients make 6.41 times the calls of one, mRPC’s 5.68 times.",
        ],
        conditions: "32 B requests, 8 B answers, 32 calls under mode of each client, gRPC’s streaming; BPEV with 38 \
                     workers, 2 pollers and a bp_timeout of 100 µs.",
        differs: &[
            GRPC_DIFFERS,
            "mRPC is not measured: its numbers are the paper’s. bp_timeout is measured, up to 50 µs; one poller.",
        ],
        trials: || {
            let curves = [("gRPC, streaming", WaitMode::Tcp), (RR_COMPOUND, WaitMode::Bpev)];
            sweep(&[1, 8, 16, 32, 64, 128], &curves, Sample::mops, |clients, mode| {
                streamed(mode, clients, 32)
            })
        },
        ..BLANK
    },
    Experiment {
        id: "D.table-3",
        place: "table III, section V-A",
        title: "Round trips of small calls, compared with mRPC",
        x: Axis::linear("50: median; 99: P99", ""),
        y: Axis::logarithmic("round trip", "µs"),
        published: &[
            published(RR_COMPOUND, &[(Some(50.0), 7.22), (Some(99.0), 7.33)], "table III"),
            published("mRPC", &[(Some(50.0), 10.16), (Some(99.0), 12.76)], "table III"),
        ],
        statements: &["RR-Compound is 1.41 times as fast as mRPC in the median, 1.74 times at P99."],
        conditions: "64 B requests, 8 B answers, one at a time.",
        differs: &[
            GRPC_DIFFERS,
            "One message of a bidirectional call at a time; tonic over TCP beside it, and the same with both ends \
             polling. mRPC’s numbers are the paper’s.",
        ],
        trials: || {
            let curves = [(GRPC, WaitMode::Tcp), (RR_COMPOUND, WaitMode::Bpev), ("BPTS", WaitMode::Bpts)];
            let task = |_, mode| ClientPoolTask::of(mode, Calls::Stream { in_flight: 1 }, 64, 8);
            let mut trials = sweep(&[50_u32], &curves, Sample::p50_us, task);
            trials.extend(sweep_beside([], &[99_u32], &curves, Sample::p99_us, task));
            trials
        },
        ..BLANK
    },
    Experiment {
        id: "D.11a",
        title: "Pollers of BPEV with 320 slow clients: latency",
        y: Axis::logarithmic("latency", "µs"),
        published: &[
            published(MEDIAN, &[(Some(1.0), 24.03)], "section V-B"),
            published(P99, &[(Some(1.0), 29.82)], "section V-B"),
        ],
        statements: &["More pollers change the latency by less than 5 µs: under low load one is enough."],
        conditions: "320 clients whose requests follow an exponential distribution of rate 1; 32 workers.",
        trials: || {
            let interval = Duration::from_millis(100);
            let task = |pollers, ()| ClientPoolTask { interval, pollers, ..streamed(WaitMode::Bpev, 320, 1) };
            let mut trials = sweep(&POLLERS, &[(MEDIAN, ())], Sample::p50_us, task);
            trials.extend(sweep_beside([], &POLLERS, &[(P99, ())], Sample::p99_us, task));
            trials
        },
        ..FIGURE_11
    },
    Experiment {
        id: "D.11b",
        title: "Pollers of BPEV with 64 saturated clients: throughput",
        y: Axis::linear("calls", "million/s"),
        published: &[published(
            SATURATED,
            &[(Some(1.0), 2.8), (Some(2.0), 3.8), (Some(3.0), 4.0)],
            "section V-B",
        )],
        statements: &["Beyond three pollers the throughput hardly changes."],
        conditions: "64 clients that call without a pause; 40 cores.",
        trials: || {
            let task = |pollers, ()| ClientPoolTask { pollers, ..streamed(WaitMode::Bpev, 64, 32) };
            sweep(&POLLERS, &[(SATURATED, ())], Sample::mops, task)
        },
        ..FIGURE_11
    },
    Experiment {
        id: "D.12",
        place: "figure 12, section V-B",
        title: "Bandwidth by the size of rings",
        x: Axis::logarithmic("ring", "KB"),
        y: Axis::logarithmic("bandwidth of requests", "Gb/s"),
        published: &[
            published(SHORT, &[(Some(32.0), 8.1)], "section V-B"),
            published(LONG, &[(Some(32.0), 16.2)], "section V-B"),
        ],
        statements: &[
            "For calls of 8 KB longer rings bring nothing; for 128 KB 256 KB bring more than twice what 32 KB do.",
            "4 MB are chosen, gRPC’s limit of messages.",
        ],
        conditions: "Calls of 8 and 128 KB through receive rings of 32 KB and longer.",
        differs: &[
            GRPC_DIFFERS,
            "One client, one call at a time, as much back. The rings of both ends do not grow.",
        ],
        trials: || {
            let limit = Trial::limit_of_bandwidth_in(8.0);
            let curves = [(SHORT, 8 << 10), (LONG, 128 << 10)];
            sweep_beside(
                limit,
                &[32, 64, 128, 256, 1_024, 4_096],
                &curves,
                gbit_per_second,
                |ring_kib, len_bytes| {
                    let ring_bytes = Some(ring_kib << 10);
                    ClientPoolTask {
                        ring_bytes,
                        ..ClientPoolTask::of(WaitMode::Bpev, Calls::Unary, len_bytes, len_bytes)
                    }
                },
            )
        },
        ..BLANK
    },
    Experiment {
        id: "D.13a",
        title: "BPEV by bp_timeout: throughput",
        y: Axis::linear("calls", "thousand/s"),
        published: &[published(RR_COMPOUND, &[(Some(0.0), 78.0), (Some(6.0), 252.0)], "section V-B")],
        trials: || by_timeout(Sample::kops),
        ..FIGURE_13
    },
    Experiment {
        id: "D.13b",
        title: "BPEV by bp_timeout: latency",
        y: Axis::linear("median latency", "µs"),
        published: &[published(RR_COMPOUND, &[(Some(0.0), 17.07), (Some(6.0), 6.8)], "section V-B")],
        trials: || by_timeout(Sample::p50_us),
        ..FIGURE_13
    },
    Experiment {
        id: "D.14",
        place: "figure 14, section V-C",
        title: "Bandwidth with zero copy and without, by payload",
        x: Axis::logarithmic("payload", "KB"),
        y: Axis::logarithmic("bandwidth of requests", "Gb/s"),
        published: &[
            published(WITHOUT, &[(Some(64.0), 32.0)], "section V-C"),
            published(WITH, &[(Some(64.0), 36.0)], "section V-C"),
        ],
        statements: &["Zero copy brings 12.5 % at 64 KB, 16.4 % at 128 KB, 4.5 % at 256 KB."],
        conditions: "One client.",
        differs: &[
            GRPC_DIFFERS,
            "Without: tonic’s codec. With: the generator of farcall-grpc-build, which encodes into the ring what fits \
             into one frame of 64 KiB with its metadata; longer messages are encoded beside it and copied. One call \
             at a time, as much back, both ends polling.",
        ],
        trials: || {
            let limit = Trial::limit_of_bandwidth_in(8.0);
            let curves = [(WITHOUT, Calls::Unary), (WITH, Calls::Direct)];
            sweep_beside(
                limit,
                &[4, 16, 60, 64, 128, 256],
                &curves,
                gbit_per_second,
                |len_kib: usize, calls| {
                    ClientPoolTask::of(WaitMode::Bpts, calls, len_kib << 10, len_kib << 10)
                },
            )
        },
        ..BLANK
    },
    Experiment {
        id: "D.15a",
        title: "The server’s processor time under heavy load",
        y: Axis::linear("processor time", "cores"),
        trials: || systems(&[1, 4, 16, 64, 128], 0, Sample::server_cores),
        ..FIGURE_15
    },
    Experiment {
        id: "D.15b",
        title: "The server’s memory for each client under heavy load",
        y: Axis::logarithmic("memory for each client", "MiB"),
        trials: || systems(&[1, 4, 16, 64, 128], 0, |sample| sample.memory_mib_per_client),
        ..FIGURE_15
    },
    Experiment {
        id: "D.16a",
        title: "The server’s processor time under low load",
        y: Axis::linear("processor time", "cores"),
        published: &[
            published(GRPC, &[(None, 0.04)], "section V-D: 4 %"),
            published(RR_COMPOUND, &[(None, 2.0)], "section V-D: 200 %"),
        ],
        trials: || systems(&[1, 4, 16, 64], 10_000, Sample::server_cores),
        ..FIGURE_16
    },
    Experiment {
        id: "D.16b",
        title: "The server’s memory for each client under low load",
        y: Axis::logarithmic("memory for each client", "MiB"),
        published: &[
            published(GRPC, &[(Some(1.0), 5.6)], "section V-D"),
            published(RR_COMPOUND, &[(Some(1.0), 14.3), (Some(16.0), 6.7)], "section V-D"),
        ],
        trials: || systems(&[1, 4, 16, 64], 10_000, |sample| sample.memory_mib_per_client),
        ..FIGURE_16
    },
];

/// Returns small calls of a streaming method, with `in_flight` calls outstanding of each client.
fn streamed(mode: WaitMode, clients: usize, in_flight: usize) -> ClientPoolTask {
    ClientPoolTask { clients, ..ClientPoolTask::of(mode, Calls::Stream { in_flight }, 32, 8) }
}

/// Returns calls with requests and responses of 4 KiB.
fn four_kib(mode: WaitMode, clients: usize, interval_us: u64) -> ClientPoolTask {
    let interval = Duration::from_micros(interval_us);
    ClientPoolTask { clients, interval, ..ClientPoolTask::of(mode, Calls::Unary, 4 << 10, 4 << 10) }
}

fn methods(limits: impl IntoIterator<Item = Trial>, interval_us: u64, y: fn(&Sample) -> f64) -> Vec<Trial> {
    sweep_beside(limits, &[4, 32, 64, 128], &METHODS, y, |clients, mode| four_kib(mode, clients, interval_us))
}

fn systems(clients: &[usize], interval_us: u64, y: fn(&Sample) -> f64) -> Vec<Trial> {
    sweep_beside([], clients, &SYSTEMS, y, |clients, mode| four_kib(mode, clients, interval_us))
}

fn by_timeout(y: fn(&Sample) -> f64) -> Vec<Trial> {
    sweep(&[0, 1, 2, 4, 6, 10, 20, 50, 100_u32], &[(RR_COMPOUND, ())], y, |timeout_us, ()| ClientPoolTask {
        bp_timeout_us: Some(timeout_us),
        ..streamed(WaitMode::Bpev, 1, 1)
    })
}
