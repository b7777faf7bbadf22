//! `farcall rpc bench`: the round-trip time of a small call.

use crate::commands::batch_args::BatchArgs;
use crate::commands::call_args::{CallArgs, call_presets, chosen_presets, presets_or_all};
use crate::commands::halves::{HalvesArgs, cannot_measure};
use crate::commands::measuring::{self, Rival, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::tune::ProfileArg;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::Job;
use farcall_bench::experiments::rpc_echo::{self, RpcEchoPlan};
use farcall_bench::load::AUTO;

/// Measure echo calls (by default 64 B requests, 8 B responses), and bare ping-pongs, sockets and UCX with them.
///
/// Starts an echo service of its own, pinned to one core, with the client pinned to another. All rivals are measured
/// interleaved, calls under every preset unless some are named. With --preset auto what clients take by themselves is
/// measured, and compared with the best of the other presets. Both are on one machine: the software RNIC measures
/// inter-process communication, an RNIC (--provider ibv) its own loopback, not a network. Between two hosts each does
/// its half: --listen, --connect; then bare limits and UCX, which are of one host, are left out.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall rpc bench\n  farcall rpc bench --preset fetch --preset server-reply --window 4\n  \
                  farcall rpc bench --preset server-reply --window 64 --batch 16 --batch auto:20\n  \
                  farcall rpc bench --preset all --preset auto --repetitions 6\n  \
                  farcall rpc bench --rate 100000 --window 64 --process-us 4 --reply-len 1024 --clients 2\n  \
                  farcall rpc bench --against ucx --json | jq '.tables[0].rows'\n  \
                  farcall rpc bench --listen 0.0.0.0:11400 --provider ibv      on the server's host, and on the client's:\n  \
                  farcall rpc bench --connect server:11400 --provider ibv"
)]
pub struct Bench {
    /// Measure calls under this preset. May be given several times.
    #[arg(long, value_name = "NAME", value_parser = presets_or_all(call_presets()))]
    preset: Vec<String>,
    #[command(flatten)]
    calls: CallArgs,
    #[command(flatten)]
    batches: BatchArgs,
    /// Bytes of each request.
    #[arg(long, default_value_t = 64, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8..=4 << 20))]
    request_len: u32,
    /// Bytes of each reply.
    #[arg(long, default_value_t = 8, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=4 << 20))]
    reply_len: u32,
    /// How long the service computes for each call.
    #[arg(long, default_value_t = 0, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    process_us: u32,
    /// Threads of the service.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    server_threads: u16,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    profile: ProfileArg,
    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    halves: HalvesArgs,
    #[command(flatten)]
    page: measuring::PageArg,
    /// Measure another system in the same run.
    #[arg(long)]
    against: Option<Rival>,
}

impl Bench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.halves.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let chosen = self.nic.choose()?;
        let (profile, nic) = (self.profile.read(&chosen, self.halves.peer())?, chosen.selection);
        let plan = RpcEchoPlan {
            stage: self.halves.stage(&self.stage, 0)?,
            nic,
            profile,
            presets: chosen_presets(&self.preset, call_presets(), |name| name != AUTO),
            windows: self.calls.windows(),
            job: Job {
                request_bytes: self.request_len,
                response_bytes: self.reply_len,
                process_us: self.process_us,
            },
            server_threads: self.server_threads,
            clients: self.calls.clients,
            connections: self.calls.connections,
            rate: self.calls.rate,
            batches: self.batches.batches(),
            with_ucx: self.against == Some(Rival::Ucx),
        };
        measuring::run_with_page(console, &self.page, |progress| {
            rpc_echo::run(&plan, progress)
                .map_err(|error| cannot_measure("cannot measure echo calls", &*error, &plan.stage))
        })
    }
}
