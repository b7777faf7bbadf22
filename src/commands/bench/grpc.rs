//! `farcall bench grpc`: calls of generated code over the transports of tonic and of Farcall.

use crate::commands::bench_args::{self, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::grpc_calls::{self, GrpcPlan};
use farcall_bench::experiments::grpc_ycsb::{self, YcsbPlan};
use farcall_bench::grpc::Preset;
use farcall_bench::streams::WaitMode;
use farcall_bench::workload::Workload;

/// Measure gRPC calls over TCP and over streams, with and without HTTP/2.
///
/// Measures messages of 64 B between two processes, each with one pinned thread: unary calls one at a time and 64 at a
/// time, round trips in one bidirectional call, and messages that a server streams. All presets use the code that tonic
/// generates, except for the unary calls of `direct`. With --workload, the YCSB core workloads are measured against the
/// key-value service of farcall grpc kv instead. Both processes are on one machine: the software RNIC measures
/// inter-process communication, not a network.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench grpc\n  farcall bench grpc --preset tcp,native --repetitions 9\n  \
                        farcall bench grpc --preset tcp,bp,bpts,event,bpev,native\n  \
                        farcall bench grpc --workload A,B,C,D,E,F --preset tcp,native --clients 16\n  \
                        farcall bench grpc --json | jq '.tables[1].rows'"
)]
pub struct GrpcBench {
    /// Transport of the calls; may be given several times, or separated by commas. The others are compared with the
    /// first one.
    #[arg(
        long = "preset",
        value_name = "PRESET",
        value_delimiter = ',',
        default_value = "tcp,http2,native,direct",
        value_parser = one_of(&PRESETS)
    )]
    presets: Vec<Preset>,
    /// YCSB core workloads to measure; may be given several times, or separated by commas.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', value_parser = one_of(&WORKLOADS))]
    workload: Vec<Workload>,
    /// Number of clients of a workload, each with one connection and one operation at a time.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=512))]
    clients: u32,
    /// Number of records that are loaded before each run of a workload.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, requires = "workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    records: u32,
    /// Number of operations of all clients in each run of a workload.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, requires = "workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    operations: u32,
    /// Seed of a workload.
    #[arg(long, default_value_t = 1, requires = "workload")]
    seed: u64,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    repeat: RepetitionArgs,
}

const PRESETS: [NamedValue<Preset>; 8] = [
    (Preset::Tcp, "tcp", "HTTP/2 over TCP, with the transport of tonic"),
    (Preset::Http2, "http2", "HTTP/2 over a stream"),
    (Preset::Native, "native", "Frames over a stream, without HTTP/2"),
    (Preset::Direct, "direct", "Like native, with unary methods that do not use the codec of tonic"),
    (Preset::Waits(WaitMode::Bp), "bp", "Like native; one thread polls the connection"),
    (Preset::Waits(WaitMode::Bpts), "bpts", "Like native; one thread polls all connections in turn"),
    (Preset::Waits(WaitMode::Event), "event", "Like native; both ends sleep until an event"),
    (
        Preset::Waits(WaitMode::Bpev),
        "bpev",
        "Like native; both ends poll for some time, then sleep; a poller wakes the server",
    ),
];

const WORKLOADS: [NamedValue<Workload>; 6] = [
    (Workload::A, "A", "Half reads, half updates"),
    (Workload::B, "B", "95 % reads, 5 % updates"),
    (Workload::C, "C", "Reads only"),
    (Workload::D, "D", "95 % reads of recent records, 5 % inserts"),
    (Workload::E, "E", "95 % scans of up to 100 records, 5 % inserts"),
    (Workload::F, "F", "Half reads, half read-modify-writes"),
];

impl GrpcBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if !self.workload.is_empty() {
            return self.run_workloads(console);
        }
        let plan = GrpcPlan { env: self.repeat.env(0)?, chosen: self.nic.open()?, presets: self.presets };
        bench_args::run(console, |progress| {
            grpc_calls::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure gRPC", &*error)
                    .remedy("find out what is missing: farcall doctor")
            })
        })
    }

    fn run_workloads(self, console: Console) -> Result<Exit, Failure> {
        let plan = YcsbPlan {
            env: self.repeat.env(self.seed)?,
            chosen: self.nic.open()?,
            presets: self.presets,
            workloads: self.workload,
            clients: self.clients as usize,
            records: self.records.into(),
            operations: self.operations.into(),
        };
        bench_args::run(console, |progress| {
            grpc_ycsb::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure YCSB", &*error)
                    .remedy("find out what is missing: farcall doctor")
            })
        })
    }
}
