//! `farcall bench verbs write`, `read`, `send` and others: single operations, and all of them.

use super::failure;
use crate::commands::bench_args::{ComparedSystem, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::RemoteArgs;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::Progress;
use farcall_bench::experiments::perf::{self, Figure};
use farcall_bench::report::Report;
use farcall_bench::rnic::{Inlining, Operation};
use farcall_link::Transport;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench verbs send --transport rc,uc,ud --figure latency --size 64\n  \
                        farcall bench verbs send --figure rate --window 64 --chain 1 --signal-every 64\n  \
                        farcall bench verbs send --events --qps 16 --srq --json"
)]
pub(super) struct OperationArgs {
    /// Transports; may be given several times, or separated by commas [default: rc; for `all`, all that the device has].
    #[arg(long = "transport", value_name = "TRANSPORT", value_delimiter = ',', value_parser = one_of(&TRANSPORTS))]
    transports: Vec<Transport>,
    /// Figures; may be given several times, or separated by commas [default: all].
    #[arg(long = "figure", value_name = "FIGURE", value_delimiter = ',', value_parser = one_of(&FIGURES))]
    figures: Vec<Figure>,
    /// Length of each message in bytes; may be given several times, or separated by commas [default: 8 to 1048576,
    /// depending on the figure].
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    sizes: Vec<u32>,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Also measure this system in the same run.
    #[arg(long)]
    against: Option<ComparedSystem>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Options of posting requests and polling for completions.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tuning")]
struct TuningArgs {
    /// Outstanding requests on each queue pair [default: rate 256, bandwidth 4].
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    window: Option<u32>,
    /// Requests posted with one doorbell [default: rate 32, bandwidth 1].
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    chain: Option<u32>,
    /// Requests per signalled request [default: latency 64 if inlined, else 1; rate and bandwidth the length of a chain].
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    signal_every: Option<u32>,
    /// Maximum length of messages that are inlined; 0 disables inlining [default: 256, or the limit of the device].
    #[arg(long, value_name = "BYTES")]
    inline_max: Option<u32>,
    /// Sleep on completion events instead of polling.
    #[arg(long)]
    events: bool,
    /// Number of connected queue pairs, with one completion queue at each end.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    qps: Option<u32>,
    /// Number of queue pairs that carry messages, in turn [default: all].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    active_qps: Option<u32>,
    /// Receive messages through one shared receive queue.
    #[arg(long)]
    srq: bool,
    /// Poll the last byte of WRITEs although the device does not guarantee to place it last.
    #[arg(long)]
    assume_order: bool,
}

pub(super) const TRANSPORTS: [NamedValue<Transport>; 3] = [
    (Transport::Rc, "rc", "Reliable connection"),
    (Transport::Uc, "uc", "Unreliable connection"),
    (Transport::Ud, "ud", "Unreliable datagram"),
];

const FIGURES: [NamedValue<Figure>; 3] = [
    (Figure::Latency, "latency", "One message at a time"),
    (Figure::Rate, "rate", "Small messages in chains"),
    (Figure::Bandwidth, "bandwidth", "Large messages, a few outstanding"),
];

impl OperationArgs {
    pub(super) fn serve(&self, console: Console) -> Result<Option<Exit>, Failure> {
        self.remote.serve(console, &self.nic)
    }

    pub(super) fn measure(
        &self,
        operations: &[Operation],
        progress: Progress<'_>,
    ) -> Result<Report, Failure> {
        let selection = self.selection(operations);
        let with_ucx = self.against == Some(ComparedSystem::Ucx);
        let env = self.remote.env(&self.repeat, 0)?;
        perf::run(&self.nic.open()?, &env, &selection, with_ucx, progress)
            .map_err(|error| failure(&error, &env))
    }

    fn selection(&self, operations: &[Operation]) -> perf::Selection {
        let transports = match (self.transports.is_empty(), operations.len()) {
            (false, _) => self.transports.clone(),
            (true, 1) => vec![Transport::Rc],
            (true, _) => Transport::ALL.to_vec(),
        };
        let figures = if self.figures.is_empty() { Figure::ALL.to_vec() } else { self.figures.clone() };
        perf::Selection {
            operations: operations.to_vec(),
            transports,
            figures,
            lens_bytes: self.sizes.iter().map(|size| *size as usize).collect(),
            adjustments: self.tuning.adjustments(),
        }
    }
}

impl TuningArgs {
    fn adjustments(&self) -> perf::Adjustments {
        perf::Adjustments {
            window: self.window,
            chain: self.chain,
            signal_every: self.signal_every,
            qps: self.qps,
            active_qps: self.active_qps,
            inlining: self.inline_max.map_or(Inlining::Auto, Inlining::UpTo),
            sleeps: self.events,
            shares_receives: self.srq,
            assumes_order: self.assume_order,
        }
    }
}
