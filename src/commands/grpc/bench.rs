//! `farcall grpc bench`: calls of generated code over tonic's transport and Farcall's.

use crate::commands::choice::{Choice, one_of};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::grpc_calls::{self, GrpcPlan};
use farcall_bench::experiments::grpc_ycsb::{self, YcsbPlan};
use farcall_bench::grpc::Preset;
use farcall_bench::streams::Way;
use farcall_bench::workload::Workload;

/// Measure gRPC calls with HTTP/2 over TCP, with HTTP/2 over streams, and without HTTP/2.
///
/// 64 B, between two processes of one thread each, pinned: unary calls one after another and 64 at once, a message
/// there and back over one call, messages that a server streams. tonic's generated code is the same everywhere, except
/// for unary calls under `direct`. With --workload the YCSB core workloads are measured instead, against the key-value
/// service of farcall grpc kv. Both ends are on one machine: the software RNIC measures inter-process communication,
/// not a network.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall grpc bench\n  farcall grpc bench --preset tcp,native --repetitions 9\n  \
                        farcall grpc bench --preset tcp,bp,bpts,event,bpev,native\n  \
                        farcall grpc bench --workload A,B,C,D,E,F --preset tcp,native --clients 16\n  \
                        farcall grpc bench --json | jq '.tables[1].rows'"
)]
pub struct Bench {
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
    /// Measure these YCSB core workloads; may be given several times, or separated by commas.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', value_parser = one_of(&WORKLOADS))]
    workload: Vec<Workload>,
    /// Clients of a workload, each with a connection and one operation at a time.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=512))]
    clients: u32,
    /// Records loaded before each run of a workload.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, requires = "workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    records: u32,
    /// Operations of each run of a workload, of all clients.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, requires = "workload")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    operations: u32,
    /// Seed of a workload.
    #[arg(long, default_value_t = 1, requires = "workload")]
    seed: u64,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
}

const PRESETS: [Choice<Preset>; 8] = [
    (Preset::Tcp, "tcp", "HTTP/2 over TCP, as tonic does it"),
    (Preset::Http2, "http2", "HTTP/2 over a stream"),
    (Preset::Native, "native", "Frames over a stream, without HTTP/2"),
    (Preset::Direct, "direct", "The same, with unary methods generated without tonic's codec"),
    (Preset::Waits(Way::Bp), "bp", "As native: a thread polls the connection"),
    (Preset::Waits(Way::Bpts), "bpts", "As native: one thread polls all connections in turn"),
    (Preset::Waits(Way::Event), "event", "As native: both ends sleep until an event"),
    (
        Preset::Waits(Way::Bpev),
        "bpev",
        "As native: both ends poll for a while, then sleep; a poller wakes the server",
    ),
];

const WORKLOADS: [Choice<Workload>; 6] = [
    (Workload::A, "A", "Half reads, half updates"),
    (Workload::B, "B", "95 % reads, 5 % updates"),
    (Workload::C, "C", "Reads only"),
    (Workload::D, "D", "95 % reads of young records, 5 % inserts"),
    (Workload::E, "E", "95 % scans of up to 100 records, 5 % inserts"),
    (Workload::F, "F", "Half reads, half read-modify-writes"),
];

impl Bench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if !self.workload.is_empty() {
            return self.run_workloads(console);
        }
        let plan =
            GrpcPlan { stage: self.stage.stage(0)?, chosen: self.nic.choose()?, presets: self.presets };
        measuring::run(console, |progress| {
            grpc_calls::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure gRPC", &*error).remedy("see what is missing: farcall doctor")
            })
        })
    }

    fn run_workloads(self, console: Console) -> Result<Exit, Failure> {
        let plan = YcsbPlan {
            stage: self.stage.stage(self.seed)?,
            chosen: self.nic.choose()?,
            presets: self.presets,
            workloads: self.workload,
            clients: self.clients as usize,
            records: self.records.into(),
            operations: self.operations.into(),
        };
        measuring::run(console, |progress| {
            grpc_ycsb::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure YCSB", &*error).remedy("see what is missing: farcall doctor")
            })
        })
    }
}
