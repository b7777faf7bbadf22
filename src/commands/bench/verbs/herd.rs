//! `farcall bench verbs herd`.

use super::failure;
use crate::commands::bench_args::RepetitionArgs;
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::RemoteArgs;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::Progress;
use farcall_bench::experiments::herd::{self, HerdFigure};
use farcall_bench::report::Report;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench verbs herd\n  farcall bench verbs herd --figure echo --connections 16 --window 8\n  \
                        farcall bench verbs herd --provider ibv --duration-ms 1000 --json"
)]
pub(super) struct HerdArgs {
    /// Figures; may be given several times, or separated by commas [default: all].
    #[arg(long = "figure", value_name = "FIGURE", value_delimiter = ',', value_parser = one_of(&FIGURES))]
    figures: Vec<HerdFigure>,
    /// Length of each message in bytes; may be given several times, or separated by commas [default: those of the figure].
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Outstanding requests on each connection.
    #[arg(long, value_name = "REQUESTS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
    /// Number of connections, which represent the client processes of the paper.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Poll the last byte of WRITEs, as in the paper, although the device does not guarantee to place it last.
    #[arg(long)]
    assume_order: bool,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

const FIGURES: [NamedValue<HerdFigure>; 3] = [
    (HerdFigure::Latency, "latency", "Figure 2: latency of READ, WRITE, inlined WRITE and ECHO"),
    (
        HerdFigure::Throughput,
        "throughput",
        "Throughput of one initiator; the paper's figures 3 and 4 need several machines",
    ),
    (HerdFigure::Echo, "echo", "Throughput of ECHO with the optimisations added one by one"),
];

impl HerdArgs {
    pub(super) fn serve(&self, console: Console) -> Result<Option<Exit>, Failure> {
        self.remote.serve(console, &self.nic)
    }

    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        let figures = if self.figures.is_empty() { HerdFigure::ALL.to_vec() } else { self.figures.clone() };
        let plan = herd::HerdPlan {
            figures,
            lens_bytes: self.sizes.iter().map(|size| *size as usize).collect(),
            window: self.window,
            connections: self.connections,
            assumes_order: self.assume_order,
        };
        let env = self.remote.env(&self.repeat, 0)?;
        herd::run(&self.nic.open()?, &env, &plan, progress).map_err(|error| failure(&error, &env))
    }
}
