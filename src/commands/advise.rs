//! `farcall advise`: recommends a preset for calls with given parameters.

use crate::commands::bench_args::{self, HtmlArg, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::tune::ProfileArg;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::rpc::tune::Peer;
use farcall_bench::experiments::Job;
use farcall_bench::experiments::advise::{self, AdvisePlan};

/// Measure which preset is fastest for given calls, and explain why.
///
/// Starts its own echo service on one core and the client on another, and measures every suitable preset in short
/// interleaved rounds. Prints the fastest preset with the reasons, the difference to the second, the presets that are
/// not suitable, and the preset that a client chooses by default. One client thread serves all connections.
#[derive(Debug, Args)]
#[command(
    mut_arg("repetitions", |arg| arg.default_value("6")),
    mut_arg("duration_ms", |arg| arg.default_value("100")),
    after_help = "Examples:\n  farcall advise --request 64 --response 4096 --clients 40\n  \
                  farcall advise --process-us 3 --window 16 --json | jq '.tables[1].rows'"
)]
pub struct Advise {
    /// Length of a request in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=1_048_576))]
    request: u32,
    /// Length of a result in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=8_388_608))]
    response: u32,
    /// Number of clients, each with its own connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    clients: u32,
    /// Time in microseconds for which the server computes in each call.
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    process_us: u32,
    /// Number of outstanding calls of each client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    window: u32,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    profile: ProfileArg,
    #[command(flatten)]
    repeat: RepetitionArgs,
}

impl Advise {
    /// Measures, and prints the recommendation with its reasons.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let selected = self.nic.open()?;
        let profile = self.profile.read(&selected, Peer::ThisHost)?;
        let job =
            Job { request_bytes: self.request, response_bytes: self.response, process_us: self.process_us };
        let (clients, window) = (self.clients, self.window);
        let plan = AdvisePlan { env: self.repeat.env(0)?, chosen: selected, profile, job, clients, window };
        bench_args::run_self_warning(console, &HtmlArg::default(), |progress| {
            advise::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure the presets", &*error)
                    .remedy("find out what is missing: farcall doctor")
            })
        })
    }
}
