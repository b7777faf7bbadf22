//! D: RR-Compound, RDMA fused into gRPC.

mod figure_10;
mod figure_11;
mod figure_12;
mod figure_13;
mod figure_14;
mod figure_15;
mod figure_16;
mod figure_17;
mod figure_18;
mod figure_19;
mod figure_4;
mod figure_5;
mod figure_6;
mod figure_8;
mod findings;
mod section_1;
mod table_3;
mod table_5;

pub(super) use findings::findings;

use crate::figures::channels::Channel;
use crate::figures::experiment::{Experiment, Paper};
use crate::figures::trial::{Sample, Trial};
use crate::grpc::{Calls, CrowdTask, Preset, YcsbTask};
use crate::streams::{Load, Way};
use crate::workload::Workload;
use std::time::Duration;

const PAPER: Paper = Paper {
    letter: 'D',
    title: "RR-Compound: RDMA-fused gRPC for Low Latency and High Throughput with an Easy Interface",
    setup: "9 nodes with Xeon Gold 6148 (40 cores), 188 GB and ConnectX-5 at 100 Gb/s; clients evenly on 8 of them, \
            the server on the ninth; gRPC 1.38 in C++, over IPoIB where it is gRPC's own (section IV-A, table II).",
};

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[&Experiment] = &[
    &section_1::EXPERIMENT,
    &figure_4::LATENCY,
    &figure_4::CPU,
    &figure_5::LATENCY,
    &figure_5::CPU,
    &figure_6::EXPERIMENT,
    &figure_8::SATURATED,
    &figure_8::SATURATED_CPU,
    &figure_8::LIMITED,
    &figure_8::LIMITED_CPU,
    &figure_10::EXPERIMENT,
    &table_3::EXPERIMENT,
    &figure_11::LOW,
    &figure_11::HIGH,
    &figure_12::EXPERIMENT,
    &figure_13::THROUGHPUT,
    &figure_13::LATENCY,
    &figure_14::EXPERIMENT,
    &figure_15::CPU,
    &figure_15::MEMORY,
    &figure_16::CPU,
    &figure_16::MEMORY,
    &figure_17::A,
    &figure_17::B,
    &figure_17::C,
    &figure_17::D,
    &figure_17::E,
    &figure_17::F,
    &figure_18::EXPERIMENT,
    &table_5::EXPERIMENT,
    &figure_19::EXPERIMENT,
];

/// Differences of all measurements of many streams.
const STREAMS_DIFFER: &str = "\
     No bare verbs but byte streams, whose messages of 64 B are one-sided WRITEs into rings, over software RNICs of \
     one host: no interrupts, no tasklet. The clients are threads of one process; server, pollers and clients share \
     the cores of this host. Runs take as long as they are told to instead of 200,000 requests a client. Every byte \
     is checked.";
/// Differences of all measurements of gRPC.
const GRPC_DIFFERS: &str = "\
     tonic’s generated code over frames without HTTP/2 on one host, instead of gRPC’s C++ core with HTTP/2 over \
     RDMA; gRPC itself is tonic over TCP’s loopback, not IPoIB. All clients are in one thread on one core; the \
     server has one other core, for its pollers, too, and one worker thread (BP: one for each client). Every answer \
     is checked.";
/// Differences of all measurements of the key-value service.
const YCSB_DIFFERS: &str = "\
     The store is an LSM tree in Rust (fjall) instead of Jungle; what is written is in the system’s memory when it \
     is answered. The clients are Rust, not YCSB’s Java over JNI. 20,000 records and operations as in the paper, so \
     that all records stay in the tree’s memory.";

/// Names of the systems in the paper.
const BUSY: &str = "Busy-Polling";
const EVENT: &str = "Event";
const GRPC: &str = "gRPC";
const RR_COMPOUND: &str = "RR-Compound";
const METHODS: [(&str, Way); 5] =
    [("IPoIB", Way::Tcp), ("BP", Way::Bp), ("BPTS", Way::Bpts), ("EVENT", Way::Event), ("BPEV", Way::Bpev)];

/// Numbers of clients, within the paper's 1 to 128.
const STREAM_CLIENTS: [usize; 5] = [1, 2, 8, 32, 128];

/// Returns trials of busy polling and of events on streams.
fn waits(interval_us: u64, y: fn(&Sample) -> f64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for clients in STREAM_CLIENTS {
        for (series, way) in [(BUSY, Way::Bp), (EVENT, Way::Event)] {
            let interval = Duration::from_micros(interval_us);
            let load = Load { clients, interval, pollers: 0, bp_timeout_us: None };
            trials.push(Trial::at(series, clients as f64, Channel::Waits(way, load), y));
        }
    }
    trials
}

/// Returns a trial of one point of gRPC calls.
fn crowd(series: &'static str, x: f64, task: CrowdTask, y: fn(&Sample) -> f64) -> Trial {
    Trial::at(series, x, Channel::Crowd(task), y)
}

/// Returns calls with requests and responses of 4 KiB.
fn four_kib(way: Way, clients: usize, interval: Duration) -> CrowdTask {
    CrowdTask { clients, interval, ..CrowdTask::of(way, Calls::Unary, 4 << 10, 4 << 10) }
}

/// The two systems of the second half of the evaluation.
const SYSTEMS: [(&str, Way); 2] = [(GRPC, Way::Tcp), (RR_COMPOUND, Way::Bpev)];

const RECORDS: u64 = 20_000;
const OPERATIONS: u64 = 20_000;

/// Returns a workload of the paper's size.
fn workload(preset: Preset, workload: Workload, clients: usize) -> YcsbTask {
    YcsbTask { preset, workload, clients, records: RECORDS, operations: OPERATIONS }
}

fn gbit_per_second(sample: &Sample) -> f64 {
    sample.gb_per_second() * 8.0
}
