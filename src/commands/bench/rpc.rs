//! `farcall bench rpc`: the round-trip time of a small call.

use crate::commands::batch_args::BatchArgs;
use crate::commands::bench_args::{self, ComparedSystem, RepetitionArgs};
use crate::commands::call_args::{CallArgs, call_presets, chosen_presets, presets_or_all};
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::{RemoteArgs, cannot_measure};
use crate::commands::tune::ProfileArg;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::Job;
use farcall_bench::experiments::rpc_echo::{self, RpcEchoPlan};
use farcall_bench::load::AUTO;

/// Measure echo calls, compared with bare ping-pongs, sockets and UCX.
///
/// Starts its own echo service on one core and the client on another. By default requests have 64 B and replies 8 B,
/// and calls are measured with every preset. All measurements are interleaved. With --preset auto, the preset that
/// clients choose is measured and compared with the best of the other presets. Both processes are on one machine: the
/// software RNIC measures inter-process communication, an RNIC (--provider ibv) its own loopback, not a network. To
/// measure between two hosts, start one half on each (--listen, --connect); bare limits and UCX, which need one host,
/// are omitted then.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench rpc\n  farcall bench rpc --preset fetch --preset server-reply --window 4\n  \
                  farcall bench rpc --preset server-reply --window 64 --batch 16 --batch auto:20\n  \
                  farcall bench rpc --preset all --preset auto --repetitions 6\n  \
                  farcall bench rpc --rate 100000 --window 64 --process-us 4 --reply-len 1024 --clients 2\n  \
                  farcall bench rpc --against ucx --json | jq '.tables[0].rows'\n  \
                  farcall bench rpc --listen 0.0.0.0:11400 --provider ibv      on the server's host, and on the client's:\n  \
                  farcall bench rpc --connect server:11400 --provider ibv"
)]
pub struct RpcBench {
    /// Preset of the calls. May be given several times [default: all].
    #[arg(long, value_name = "NAME", value_parser = presets_or_all(call_presets()))]
    preset: Vec<String>,
    #[command(flatten)]
    calls: CallArgs,
    #[command(flatten)]
    batches: BatchArgs,
    /// Length of each request in bytes.
    #[arg(long, default_value_t = 64, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8..=4 << 20))]
    request_len: u32,
    /// Length of each reply in bytes.
    #[arg(long, default_value_t = 8, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=4 << 20))]
    reply_len: u32,
    /// Time in microseconds for which the service computes in each call.
    #[arg(long, default_value_t = 0, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    process_us: u32,
    /// Number of threads of the service.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    server_threads: u16,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    profile: ProfileArg,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    html: bench_args::HtmlArg,
    /// Also measure this system in the same run.
    #[arg(long)]
    against: Option<ComparedSystem>,
}

impl RpcBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.remote.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let selected = self.nic.open()?;
        let (profile, nic) = (self.profile.read(&selected, self.remote.peer())?, selected.selection);
        let plan = RpcEchoPlan {
            env: self.remote.env(&self.repeat, 0)?,
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
            with_ucx: self.against == Some(ComparedSystem::Ucx),
        };
        bench_args::run_with_html(console, &self.html, |progress| {
            rpc_echo::run(&plan, progress)
                .map_err(|error| cannot_measure("cannot measure echo calls", &*error, &plan.env))
        })
    }
}
