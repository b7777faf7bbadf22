//! `farcall perf herd`.

use super::{Times, failure};
use crate::commands::nic_args::NicArgs;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use farcall_bench::experiments::{Progress, herd};
use farcall_bench::report::Report;
use farcall_bench::rnic::LastByte;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf herd\n  farcall perf herd --figure echo --connections 16 --window 8\n  \
                        farcall perf herd --provider ibv --duration-ms 1000 --json"
)]
pub(super) struct HerdArgs {
    /// Which figures; may be given several times, or separated by commas. By default all.
    #[arg(long = "figure", value_name = "FIGURE", value_delimiter = ',')]
    figures: Vec<FigureName>,
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
    times: Times,
    #[command(flatten)]
    nic: NicArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FigureName {
    /// Figure 2: latency of READ, WRITE, inlined WRITE and ECHO.
    Latency,
    /// Figure 3: in-bound throughput.
    InBound,
    /// Figure 4: out-bound throughput.
    OutBound,
    /// Throughput of ECHO with the optimisations added one by one.
    Echo,
}

impl HerdArgs {
    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        let figures = match self.figures.is_empty() {
            true => herd::HerdFigure::ALL.to_vec(),
            false => self.figures.iter().map(|name| name.figure()).collect(),
        };
        let plan = herd::HerdPlan {
            figures,
            lens_bytes: self.sizes.iter().map(|size| *size as usize).collect(),
            window: self.window,
            connections: self.connections,
            last_byte: if self.assume_order { LastByte::Assumed } else { LastByte::IfPromised },
        };
        herd::run(&self.nic.choose()?, &self.times.stage(0)?, &plan, progress)
            .map_err(|error| failure(&error))
    }
}

impl FigureName {
    fn figure(self) -> herd::HerdFigure {
        match self {
            Self::Latency => herd::HerdFigure::Latency,
            Self::InBound => herd::HerdFigure::Inbound,
            Self::OutBound => herd::HerdFigure::Outbound,
            Self::Echo => herd::HerdFigure::Echo,
        }
    }
}
