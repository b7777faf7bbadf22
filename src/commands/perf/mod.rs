//! `farcall perf`: capabilities of this machine and its RNIC.

mod herd;
mod limits;
mod qps;
mod verbs;

use crate::commands::halves::cannot_measure;
use crate::commands::measuring;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand};
use farcall_bench::experiments::{Progress, Stage};
use farcall_bench::report::Report;
use farcall_bench::rnic::{Operation, RnicError};
use verbs::VerbsArgs;

/// Measure latency, rate and bandwidth of verbs between two pinned processes.
///
/// All rivals are measured in one run, interleaved; figures are medians with ranges over the repetitions. Between two
/// hosts each does its half: --listen, --connect; then bare limits and UCX, which are of one host, are left out.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf all --against ucx         every operation and transport, beside UCX over shared memory\n  \
                        farcall perf write --size 64 --size 1048576\n  \
                        farcall perf send --transport ud --figure rate --window 128 --chain 16\n  \
                        farcall perf send --events --qps 16 --srq\n  \
                        farcall perf all --provider ibv        over the first RNIC with an active port\n  \
                        farcall perf qps                       1,000 queue pairs through one completion queue\n  \
                        farcall perf herd --figure echo        HERD's echoes, beside what the paper states\n  \
                        farcall perf all --listen 0.0.0.0:11400 --provider ibv         the server's host; on the client's:\n  \
                        farcall perf all --connect server:11400 --provider ibv\n  \
                        farcall perf limits                    what bare memory and sockets can do here\n  \
                        farcall perf send --json | jq '.tables[0].rows'"
)]
pub struct Perf {
    #[command(flatten)]
    page: measuring::PageArg,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// RDMA WRITE: found by its last byte, where the device places that last.
    Write(VerbsArgs),
    /// RDMA WRITE with immediate data: consumes a receive.
    WriteImm(VerbsArgs),
    /// RDMA READ.
    Read(VerbsArgs),
    /// SEND.
    Send(VerbsArgs),
    /// SEND with immediate data.
    SendImm(VerbsArgs),
    /// 64-bit compare and swap.
    Cas(VerbsArgs),
    /// 64-bit fetch and add.
    Faa(VerbsArgs),
    /// All operations over all transports that the device has.
    All(VerbsArgs),
    /// Cost of 1,000 connected queue pairs that share one completion queue, compared with 16.
    Qps(qps::QpsArgs),
    /// The micro-benchmarks of the HERD paper, beside what it publishes.
    Herd(herd::HerdArgs),
    /// The bare limits: shared cache lines, copies, sockets, eventfds, system calls.
    Limits(limits::LimitsArgs),
}

impl Perf {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If a measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.what.serve(console)? {
            return Ok(exit);
        }
        measuring::run_with_page(console, &self.page, |progress| self.what.measure(progress))
    }
}

impl What {
    /// Serves client halves, if this is the server half.
    fn serve(&self, console: Console) -> Result<Option<Exit>, Failure> {
        match self {
            Self::Write(args)
            | Self::WriteImm(args)
            | Self::Read(args)
            | Self::Send(args)
            | Self::SendImm(args)
            | Self::Cas(args)
            | Self::Faa(args)
            | Self::All(args) => args.serve(console),
            Self::Qps(args) => args.serve(console),
            Self::Herd(args) => args.serve(console),
            Self::Limits(_) => Ok(None),
        }
    }

    fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        match self {
            Self::Write(args) => args.measure(&[Operation::Write], progress),
            Self::WriteImm(args) => args.measure(&[Operation::WriteImm], progress),
            Self::Read(args) => args.measure(&[Operation::Read], progress),
            Self::Send(args) => args.measure(&[Operation::Send], progress),
            Self::SendImm(args) => args.measure(&[Operation::SendImm], progress),
            Self::Cas(args) => args.measure(&[Operation::CompareSwap], progress),
            Self::Faa(args) => args.measure(&[Operation::FetchAdd], progress),
            Self::All(args) => args.measure(&Operation::ALL, progress),
            Self::Qps(args) => args.measure(progress),
            Self::Herd(args) => args.measure(progress),
            Self::Limits(args) => args.measure(progress),
        }
    }
}

/// Returns the failure of a verbs measurement, with a remedy.
fn failure(error: &RnicError, stage: &Stage) -> Failure {
    match error {
        RnicError::Illegal(refusal) => Failure::new("this cannot be measured")
            .why(&refusal.what)
            .remedy(&refusal.nearest)
            .exit(Exit::Usage),
        error => cannot_measure("cannot measure the verbs of this machine", error, stage),
    }
}
