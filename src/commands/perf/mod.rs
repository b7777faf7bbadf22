//! `farcall perf`: what this machine and its RNIC can do.

mod limits;
mod verbs;

use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::{Args, Subcommand, ValueEnum};
use farcall_bench::experiments::{Progress, Stage};
use farcall_bench::report::Report;
use farcall_bench::rnic::{Operation, RnicError};
use std::time::Duration;
use verbs::VerbsArgs;

/// Measure latency, rate and bandwidth of verbs between two pinned processes.
///
/// All rivals are measured in one run, interleaved; figures are medians with ranges over the repetitions.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf all --against ucx         every operation and transport, beside UCX over shared memory\n  \
                        farcall perf write --size 64 --size 1048576\n  \
                        farcall perf send --transport ud --figure rate --window 128 --chain 16\n  \
                        farcall perf send --events --qps 16 --srq\n  \
                        farcall perf all --provider ibv        over the first RNIC with an active port\n  \
                        farcall perf limits                    what bare memory and sockets can do here\n  \
                        farcall perf send --json | jq '.tables[0].rows'"
)]
pub struct Perf {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rival {
    /// ucx_perftest over shared memory (Debian: apt-get install ucx-utils).
    Ucx,
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
    /// The bare limits: shared cache lines, copies, sockets, eventfds, system calls.
    Limits(limits::LimitsArgs),
}

/// How long and how often.
#[derive(Debug, Clone, Args)]
struct Times {
    /// How often each figure is taken.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    duration_ms: u64,
}

impl Times {
    fn stage(&self) -> Result<Stage, Failure> {
        Stage::new(self.repetitions, Duration::from_millis(self.duration_ms), 0)
            .map_err(|error| Failure::because("cannot prepare the measurement", &error))
    }
}

impl Perf {
    /// Measures.
    ///
    /// # Errors
    /// When something cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let line = spinner();
        let mut progress = |what: &str| {
            line.set_message(what.to_owned());
            !stop.is_raised()
        };
        let report = self.what.measure(&mut progress)?;
        line.finish_and_clear();
        console.say(&report, &report.to_json())?;
        Ok(match (stop.is_raised(), report.is_sound()) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Success,
            (false, false) => Exit::Failure,
        })
    }
}

impl What {
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
            Self::Limits(args) => args.measure(progress),
        }
    }
}

/// Says what to do about a measurement of verbs that failed.
fn failure(error: &RnicError) -> Failure {
    match error {
        RnicError::Illegal(refusal) => Failure::new("this cannot be measured")
            .why(&refusal.what)
            .remedy(&refusal.nearest)
            .exit(Exit::Usage),
        error => Failure::because("cannot measure the verbs of this machine", error)
            .remedy("see what is missing: farcall doctor"),
    }
}
