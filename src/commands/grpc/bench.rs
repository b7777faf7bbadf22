//! `farcall grpc bench`: calls of generated code over tonic's transport and ours.

use crate::commands::choice::{Choice, one_of};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::grpc_calls::{self, GrpcPlan};
use farcall_bench::grpc::Preset;

/// Measure gRPC calls with HTTP/2 over TCP, with HTTP/2 over streams, and without HTTP/2.
///
/// 64 B, between two processes of one thread each, pinned: unary calls one after another and 64 at once, a message there
/// and back over one call, messages that a server streams. tonic's generated code is the same everywhere, except for unary calls
/// under `direct`. Both ends are on
/// one machine: the software RNIC measures inter-process communication, not a network.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall grpc bench\n  farcall grpc bench --preset tcp,native --repetitions 9\n  \
                        farcall grpc bench --json | jq '.tables[1].rows'"
)]
pub struct Bench {
    /// What carries the calls; may be given several times, or separated by commas. The others are compared with the
    /// first one.
    #[arg(
        long = "preset",
        value_name = "PRESET",
        value_delimiter = ',',
        default_value = "tcp,http2,native,direct",
        value_parser = one_of(&PRESETS)
    )]
    presets: Vec<Preset>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
}

const PRESETS: [Choice<Preset>; 4] = [
    (Preset::Tcp, "tcp", "HTTP/2 over TCP, as tonic does it"),
    (Preset::Http2, "http2", "HTTP/2 over a stream"),
    (Preset::Native, "native", "Frames over a stream, without HTTP/2"),
    (Preset::Direct, "direct", "The same, with unary methods generated without tonic's codec"),
];

impl Bench {
    /// Measures and prints.
    ///
    /// # Errors
    /// When it cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let plan =
            GrpcPlan { stage: self.stage.stage(0)?, chosen: self.nic.choose()?, presets: self.presets };
        measuring::run(console, |progress| {
            grpc_calls::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure gRPC", &*error).remedy("see what is missing: farcall doctor")
            })
        })
    }
}
