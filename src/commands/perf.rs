//! `farcall perf`: what this machine and its RNIC can do.

use crate::commands::nic_args::NicArgs;
use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::{Args, ValueEnum};
use farcall_bench::experiments::{Stage, limits, perf};
use farcall_bench::report::Report;
use std::time::Duration;

/// Measure latency, rate and bandwidth of verbs between two pinned processes.
///
/// All rivals are measured in one run, interleaved; figures are medians with ranges over the repetitions.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf all --against ucx         every verb, beside UCX over shared memory\n  \
                        farcall perf write --size 64 --size 1048576\n  \
                        farcall perf all --provider ibv        over the first RNIC with an active port\n  \
                        farcall perf limits                    what bare memory and sockets can do here\n  \
                        farcall perf send --json | jq '.tables[0].rows'"
)]
pub struct Perf {
    /// What to measure.
    what: What,
    /// Bytes of each message; may be given several times. By default 8 B to 1 MiB, whatever suits the test.
    #[arg(long = "size", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    sizes: Vec<u32>,
    /// How often each figure is taken.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    duration_ms: u64,
    /// Measure another system in the same run.
    #[arg(long)]
    against: Option<Rival>,
    #[command(flatten)]
    nic: NicArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rival {
    /// ucx_perftest over shared memory (Debian: apt-get install ucx-utils).
    Ucx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// RDMA WRITE: ping-pong latency, rate in chains, bandwidth.
    Write,
    /// RDMA READ: latency, bandwidth.
    Read,
    /// SEND: ping-pong latency, rate in chains.
    Send,
    /// All verbs.
    All,
    /// The bare limits: shared cache lines, copies, sockets, eventfds, system calls.
    Limits,
}

impl Perf {
    /// Measures.
    ///
    /// # Errors
    /// When something cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let stage = Stage::new(self.repetitions, Duration::from_millis(self.duration_ms), 0)
            .map_err(|error| Failure::because("cannot prepare the measurement", &error))?;
        let line = spinner();
        let mut progress = |what: &str| {
            line.set_message(what.to_owned());
            !stop.is_raised()
        };
        let report = self.measure(&stage, &mut progress)?;
        line.finish_and_clear();
        console.say(&report, &report.to_json())?;
        Ok(match (stop.is_raised(), report.is_sound()) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Success,
            (false, false) => Exit::Failure,
        })
    }

    fn measure(&self, stage: &Stage, progress: &mut dyn FnMut(&str) -> bool) -> Result<Report, Failure> {
        let with_ucx = self.against == Some(Rival::Ucx);
        let verbs = match self.what {
            What::Write => perf::Verbs::Write,
            What::Read => perf::Verbs::Read,
            What::Send => perf::Verbs::Send,
            What::All => perf::Verbs::All,
            What::Limits => {
                return limits::run(stage, with_ucx, progress)
                    .map_err(|error| Failure::because("cannot measure the limits of this machine", &error));
            }
        };
        let sizes: Vec<usize> = self.sizes.iter().map(|size| *size as usize).collect();
        perf::run(&self.nic.choose()?, stage, verbs, &sizes, with_ucx, progress).map_err(|error| {
            Failure::because("cannot measure the verbs of this machine", &error)
                .remedy("see what is missing: farcall doctor")
        })
    }
}
