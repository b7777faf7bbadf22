//! `farcall perf qps`.

use super::failure;
use super::verbs::TRANSPORTS;
use crate::commands::choice::{Choice, one_of};
use crate::commands::halves::HalvesArgs;
use crate::commands::measuring::StageArgs;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::{Progress, qps};
use farcall_bench::report::Report;
use farcall_bench::rnic::Operation;
use farcall_link::Transport;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf qps\n  farcall perf qps --qps 100,10000 --operation write-imm --transport uc\n  \
                        farcall perf qps --json | jq '.tables[0].rows[] | [.qps, .active_qps, .ratio_of_time.median]'"
)]
pub(super) struct QpsArgs {
    /// Numbers of connected queue pairs; may be given several times, or separated by commas. 16 is always measured.
    #[arg(long = "qps", value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 16, 64, 256, 1000], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    counts: Vec<u32>,
    /// Operation.
    #[arg(long, default_value = "send", value_parser = one_of(&OPERATIONS))]
    operation: Operation,
    /// Over which transport.
    #[arg(long, default_value = "rc", value_parser = one_of(&TRANSPORTS))]
    transport: Transport,
    /// Bytes of each message.
    #[arg(long = "size", value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    len_bytes: u32,
    /// Requests outstanding on each queue pair, one of them signalled.
    #[arg(long, value_name = "REQUESTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    halves: HalvesArgs,
}

const OPERATIONS: [Choice<Operation>; 4] = [
    (Operation::Write, "write", "RDMA WRITE"),
    (Operation::WriteImm, "write-imm", "RDMA WRITE with immediate data"),
    (Operation::Send, "send", "SEND"),
    (Operation::SendImm, "send-imm", "SEND with immediate data"),
];

impl QpsArgs {
    pub(super) fn serve(&self, console: Console) -> Result<Option<Exit>, Failure> {
        self.halves.serve(console, &self.nic)
    }

    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        let plan = qps::QpsPlan {
            counts: self.counts.clone(),
            operation: self.operation,
            transport: self.transport,
            len_bytes: self.len_bytes as usize,
            window: self.window,
        };
        let stage = self.halves.stage(&self.stage, 0)?;
        qps::run(&self.nic.choose()?, &stage, &plan, progress).map_err(|error| failure(&error, &stage))
    }
}
