//! D: RR-Compound, RDMA fused into gRPC.

mod calls;
mod findings;
mod programs;

use crate::figures::channels::Channel;
use crate::figures::experiment::{Axis, Experiment, Paper};
use crate::figures::sample::Sample;
use crate::figures::trial::{Trial, sweep_beside};
use crate::rnic::{Operation, RnicTask, RnicTest, Tuning};
use crate::streams::{Load, Medium, WaitMode};
use farcall_link::Transport;
use std::time::Duration;

pub(super) use calls::EXPERIMENTS as CALLS;
pub(super) use findings::FINDINGS;
pub(super) use programs::EXPERIMENTS as PROGRAMS;

pub(super) const PAPER: Paper = Paper {
    letter: 'D',
    title: "RR-Compound: RDMA-fused gRPC for Low Latency and High Throughput with an Easy Interface",
    setup: "9 nodes with Xeon Gold 6148 (40 cores), 188 GB and ConnectX-5 at 100 Gb/s; clients evenly on 8 of them, \
            the server on the ninth; gRPC 1.38 in C++, over IPoIB where it is gRPC's own (section IV-A, table II).",
    file: file!(),
};

/// Experiment without content, for struct updates.
const BLANK: Experiment = Experiment::of(&PAPER);

/// Busy polling and events, requests without a pause: a panel for latency and one for processor time.
const FIGURE_4: Experiment = Experiment {
    place: "figure 4, section IV-B",
    x: Axis::logarithmic("clients", ""),
    statements: &[
        "The latency of busy polling stays almost constant up to as many connections as cores, then rises slowly; \
         that of events rises from 8 clients on, and sharply from 40 on.",
        "With events the server is idle for up to more than 80 % of its time: one core handles all interrupts.",
    ],
    conditions: "Ping-pongs by ibverbs, 200,000 requests of each client, without a pause; 1 to 128 clients.",
    differs: &[STREAMS_DIFFER],
    ..BLANK
};

/// Busy polling and events, one request per 300 µs: a panel for latency and one for processor time.
const FIGURE_5: Experiment = Experiment {
    place: "figure 5, section IV-B",
    x: Axis::logarithmic("clients", ""),
    statements: &[
        "Events scale; the latency of busy polling rises sharply from 40 clients on, as many as cores.",
        "Busy polling uses far more processor time of the server.",
    ],
    conditions: "As figure 4, and each client sends 300 µs after an answer.",
    differs: &[STREAMS_DIFFER],
    ..BLANK
};

/// Experiments with streams, in the paper's order; those of [`CALLS`] and [`PROGRAMS`] follow.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: "D.section-1",
        place: "section I",
        title: "Streams, sockets and raw WRITE, from 16 B to 512 KB",
        x: Axis::logarithmic("write", "B"),
        y: Axis::logarithmic("rate", "GB/s"),
        statements: &["RDMA is 8.6 to 15 times faster than TCP from memory to memory, from 16 B to 512 KB."],
        conditions: "sockperf over TCP and perftest over RDMA on 100 Gb/s Ethernet; the paper does not say of which \
                     figure.",
        differs: &[
            "Between two processes of one host, both polling, one thread each: rates of writes in one direction, not \
             latencies. Raw WRITE checks nothing; of the others first and last bytes are checked while it is timed.",
        ],
        trials: written,
        ..BLANK
    },
    Experiment {
        id: "D.4a",
        title: "Busy polling and events without a pause: latency",
        y: Axis::logarithmic("mean latency", "µs"),
        trials: || waits(Trial::limits_of_one(Sample::mean_us), 0, Sample::mean_us),
        ..FIGURE_4
    },
    Experiment {
        id: "D.4b",
        title: "Busy polling and events without a pause: the server’s processor time",
        y: Axis::logarithmic("processor time", "µs for each request"),
        trials: || waits([], 0, Sample::server_us_per_op),
        ..FIGURE_4
    },
    Experiment {
        id: "D.5a",
        title: "Busy polling and events, 300 µs between requests: latency",
        y: Axis::logarithmic("mean latency", "µs"),
        trials: || waits(Trial::limits_of_one(Sample::mean_us), 300, Sample::mean_us),
        ..FIGURE_5
    },
    Experiment {
        id: "D.5b",
        title: "Busy polling and events, 300 µs between requests: the server’s processor time",
        y: Axis::logarithmic("processor time", "µs for each request"),
        trials: || waits([], 300, Sample::server_us_per_op),
        ..FIGURE_5
    },
    Experiment {
        id: "D.6",
        place: "figure 6, section IV-C",
        title: "Busy polling and events, 100 µs between requests: latency",
        x: Axis::logarithmic("clients", ""),
        y: Axis::logarithmic("mean latency", "µs"),
        statements: &["Neither scales beyond 40 clients: 100 µs are the pain point of both."],
        conditions: "As figure 4, and each client sends 100 µs after an answer.",
        differs: &[STREAMS_DIFFER],
        trials: || waits(Trial::limits_of_one(Sample::mean_us), 100, Sample::mean_us),
        ..BLANK
    },
];

/// Differences of all measurements of many streams.
const STREAMS_DIFFER: &str = "No bare verbs but byte streams, whose messages of 64 B are one-sided WRITEs into rings, \
                              over software RNICs of one host: no interrupts, no tasklet. The clients are threads of \
                              one process; server, pollers and clients share the cores of this host. Runs take as \
                              long as they are told to instead of 200,000 requests a client. Every byte is checked.";
/// Differences of all measurements of gRPC.
const GRPC_DIFFERS: &str = "tonic’s generated code over frames without HTTP/2 on one host, instead of gRPC’s C++ core \
                            with HTTP/2 over RDMA; gRPC itself is tonic over TCP’s loopback, not IPoIB. All clients \
                            are in one thread on one core; the server has one other core, for its pollers, too, and \
                            one worker thread (BP: one for each client). Every answer is checked.";
/// Names of the systems in the paper.
const BUSY: &str = "Busy-Polling";
const EVENT: &str = "Event";
const GRPC: &str = "gRPC";
const RR_COMPOUND: &str = "RR-Compound";
const STREAM: &str = "stream";
const TCP: &str = "TCP";

/// Returns `limits`, and trials of busy polling and of events on streams.
fn waits(limits: impl IntoIterator<Item = Trial>, interval_us: u64, y: fn(&Sample) -> f64) -> Vec<Trial> {
    let curves = [(BUSY, WaitMode::Bp), (EVENT, WaitMode::Event)];
    // Within the paper's 1 to 128 clients.
    sweep_beside(limits, &[1, 2, 8, 32, 128], &curves, y, |clients, mode| {
        let interval = Duration::from_micros(interval_us);
        Channel::Waits(mode, Load { clients, interval, pollers: 0, bp_timeout_us: None })
    })
}

fn written() -> Vec<Trial> {
    let lens_bytes = [16, 64, 512, 4 << 10, 32 << 10, 512 << 10];
    let curves = [(STREAM, Medium::Stream), (TCP, Medium::Tcp), ("Unix socket", Medium::Unix)];
    let (limit, y) = (Trial::limit_of_bandwidth(), Sample::gb_per_second);
    let mut trials =
        sweep_beside(limit, &lens_bytes, &curves, y, |len_bytes, medium| Channel::Writes(medium, len_bytes));
    trials.extend(sweep_beside(
        [],
        &lens_bytes,
        &[("raw WRITE", Operation::Write)],
        y,
        |len_bytes, operation| {
            // Few WRITEs outstanding from 4 KiB on, as in `farcall bench verbs`.
            let tuning = if len_bytes < 4 << 10 { Tuning::RATE } else { Tuning::BANDWIDTH };
            RnicTask { operation, transport: Transport::Rc, test: RnicTest::Throughput, len_bytes, tuning }
        },
    ));
    trials
}

fn gbit_per_second(sample: &Sample) -> f64 {
    sample.gb_per_second() * 8.0
}
