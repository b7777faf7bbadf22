//! `farcall perf qps`.

use super::verbs::TransportName;
use super::{Times, failure};
use crate::commands::nic_args::NicArgs;
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use farcall_bench::experiments::{Progress, qps};
use farcall_bench::report::Report;
use farcall_bench::rnic::Operation;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf qps\n  farcall perf qps --qps 100,10000 --operation write-imm --transport uc\n  \
                        farcall perf qps --json | jq '.tables[0].rows[] | [.qps, .active_qps, .ratio_of_time.median]'"
)]
pub(super) struct QpsArgs {
    /// Numbers of connected queue pairs; may be given several times, or separated by commas. 16 is always measured.
    #[arg(long = "qps", value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 16, 64, 256, 1000], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    counts: Vec<u32>,
    /// What travels over them.
    #[arg(long, default_value = "send")]
    operation: OperationName,
    /// Over which transport.
    #[arg(long, default_value = "rc")]
    transport: TransportName,
    /// Bytes of each message.
    #[arg(long = "size", value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    len_bytes: u32,
    /// Requests outstanding on each queue pair, one of them signalled.
    #[arg(long, value_name = "REQUESTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    nic: NicArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OperationName {
    Write,
    WriteImm,
    Send,
    SendImm,
}

impl QpsArgs {
    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        let plan = qps::QpsPlan {
            counts: self.counts.clone(),
            operation: match self.operation {
                OperationName::Write => Operation::Write,
                OperationName::WriteImm => Operation::WriteImm,
                OperationName::Send => Operation::Send,
                OperationName::SendImm => Operation::SendImm,
            },
            transport: self.transport.transport(),
            len_bytes: self.len_bytes as usize,
            window: self.window,
        };
        qps::run(&self.nic.choose()?, &self.times.stage(0)?, &plan, progress).map_err(|error| failure(&error))
    }
}
