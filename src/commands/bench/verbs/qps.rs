//! `farcall bench verbs qps`.

use super::failure;
use super::operations::TRANSPORTS;
use crate::commands::bench_args::RepetitionArgs;
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::RemoteArgs;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::{Progress, qps};
use farcall_bench::report::Report;
use farcall_bench::rnic::Operation;
use farcall_link::Transport;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench verbs qps\n  farcall bench verbs qps --qps 100,10000 --operation write-imm --transport uc\n  \
                        farcall bench verbs qps --json | jq '.tables[0].rows[] | [.qps, .active_qps, .ratio_of_time.median]'"
)]
pub(super) struct QpsArgs {
    /// Numbers of connected queue pairs; may be given several times, or separated by commas. 16 is always measured.
    #[arg(long = "qps", value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 16, 64, 256, 1000], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    counts: Vec<u32>,
    /// Operation.
    #[arg(long, default_value = "send", value_parser = one_of(&OPERATIONS))]
    operation: Operation,
    /// Transport.
    #[arg(long, default_value = "rc", value_parser = one_of(&TRANSPORTS))]
    transport: Transport,
    /// Length of each message in bytes.
    #[arg(long = "size", value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    len_bytes: u32,
    /// Outstanding requests on each queue pair, of which one is signalled.
    #[arg(long, value_name = "REQUESTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

const OPERATIONS: [NamedValue<Operation>; 4] = [
    (Operation::Write, "write", "RDMA WRITE"),
    (Operation::WriteImm, "write-imm", "RDMA WRITE with immediate data"),
    (Operation::Send, "send", "SEND"),
    (Operation::SendImm, "send-imm", "SEND with immediate data"),
];

impl QpsArgs {
    pub(super) fn serve(&self, console: Console) -> Result<Option<Exit>, Failure> {
        self.remote.serve(console, &self.nic)
    }

    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        let plan = qps::QpsPlan {
            counts: self.counts.clone(),
            operation: self.operation,
            transport: self.transport,
            len_bytes: self.len_bytes as usize,
            window: self.window,
        };
        let env = self.remote.env(&self.repeat, 0)?;
        qps::run(&self.nic.open()?, &env, &plan, progress).map_err(|error| failure(&error, &env))
    }
}
