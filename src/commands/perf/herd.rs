//! `farcall perf herd`.

use super::failure;
use crate::commands::choice::{Choice, one_of};
use crate::commands::halves::HalvesArgs;
use crate::commands::measuring::StageArgs;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::Progress;
use farcall_bench::experiments::herd::{self, HerdFigure};
use farcall_bench::report::Report;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf herd\n  farcall perf herd --figure echo --connections 16 --window 8\n  \
                        farcall perf herd --provider ibv --duration-ms 1000 --json"
)]
pub(super) struct HerdArgs {
    /// Which figures; may be given several times, or separated by commas. By default all.
    #[arg(long = "figure", value_name = "FIGURE", value_delimiter = ',', value_parser = one_of(&FIGURES))]
    figures: Vec<HerdFigure>,
    /// Bytes of each message; may be given several times, or separated by commas. By default those of each figure.
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Requests outstanding on each connection.
    #[arg(long, value_name = "REQUESTS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
    /// Connections, which stand for the paper's client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Find WRITEs by their last byte though the device does not promise to place it last, as the paper does.
    #[arg(long)]
    assume_order: bool,
    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    halves: HalvesArgs,
}

const FIGURES: [Choice<HerdFigure>; 3] = [
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
        self.halves.serve(console, &self.nic)
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
        let stage = self.halves.stage(&self.stage, 0)?;
        herd::run(&self.nic.choose()?, &stage, &plan, progress).map_err(|error| failure(&error, &stage))
    }
}
