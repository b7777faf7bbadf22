//! `farcall bench verbs`: capabilities of this machine and its RNIC.

mod herd;
mod limits;
mod operations;
mod qps;

use crate::commands::bench_args;
use crate::commands::remote_args::cannot_measure;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand};
use farcall_bench::experiments::{ExperimentEnv, Progress};
use farcall_bench::report::Report;
use farcall_bench::rnic::{Operation, RnicError};
use operations::OperationArgs;

/// Measure latency, rate and bandwidth of verbs between two processes.
///
/// All measurements of a run are interleaved; figures are medians with ranges over the repetitions. To measure between
/// two hosts, start one half on each (--listen, --connect); bare limits and UCX, which need one host, are omitted then.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench verbs all --against ucx         every operation and transport, compared with UCX over shared memory\n  \
                        farcall bench verbs write --size 64 --size 1048576\n  \
                        farcall bench verbs send --transport ud --figure rate --window 128 --chain 16\n  \
                        farcall bench verbs send --events --qps 16 --srq\n  \
                        farcall bench verbs all --provider ibv        over the first RNIC with an active port\n  \
                        farcall bench verbs qps                       1,000 queue pairs through one completion queue\n  \
                        farcall bench verbs herd --figure echo        the echoes of HERD, compared with the paper\n  \
                        farcall bench verbs all --listen 0.0.0.0:11400 --provider ibv         the server's host; on the client's:\n  \
                        farcall bench verbs all --connect server:11400 --provider ibv\n  \
                        farcall bench verbs limits                    the limits of bare memory and sockets\n  \
                        farcall bench verbs send --json | jq '.tables[0].rows'"
)]
pub struct VerbsBench {
    #[command(flatten)]
    html: bench_args::HtmlArg,
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// RDMA WRITE; the target polls the last byte if the device places it last.
    Write(OperationArgs),
    /// RDMA WRITE with immediate data, which consumes a receive.
    WriteImm(OperationArgs),
    /// RDMA READ.
    Read(OperationArgs),
    /// SEND.
    Send(OperationArgs),
    /// SEND with immediate data.
    SendImm(OperationArgs),
    /// 64-bit compare and swap.
    Cas(OperationArgs),
    /// 64-bit fetch and add.
    Faa(OperationArgs),
    /// All operations over all transports of the device.
    All(OperationArgs),
    /// Cost of 1,000 connected queue pairs that share one completion queue, compared with 16.
    Qps(qps::QpsArgs),
    /// The micro-benchmarks of the HERD paper, compared with its figures.
    Herd(herd::HerdArgs),
    /// Bare limits: shared cache lines, copies, sockets, eventfds, system calls.
    Limits(limits::LimitsArgs),
}

impl VerbsBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If a measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.measurement.serve(console)? {
            return Ok(exit);
        }
        bench_args::run_with_html(console, &self.html, |progress| self.measurement.measure(progress))
    }
}

impl Measurement {
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
fn failure(error: &RnicError, env: &ExperimentEnv) -> Failure {
    match error {
        RnicError::Illegal(refusal) => Failure::new("cannot measure this combination of options")
            .why(&refusal.what)
            .remedy(&refusal.nearest)
            .exit(Exit::Usage),
        error => cannot_measure("cannot measure the verbs of this machine", error, env),
    }
}
