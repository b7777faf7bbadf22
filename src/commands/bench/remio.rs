//! `farcall bench remio`: one-sided I/O to the memory of another process.

use crate::commands::bench_args::{self, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, ValueEnum};
use farcall_bench::experiments::remio_bench::{self, RemioPlan};
use farcall_bench::remio::{Combining, LocalMemory, Polling, RemioTask, Workload};

/// Measure one-sided READs and WRITEs: single, chained, merged, with and without admission.
///
/// A second process grants access to its memory and sleeps. Threads of this process submit bursts of requests through
/// one session, and wait for each burst. All combinations of the options are measured, interleaved. Each is also
/// measured with bursts that are held back until they are complete, so that the number of work requests does not depend
/// on timing. Every byte that is read is checked, and the written memory at the end; a wrong byte ends the measurement
/// with exit code 1. Takes about two minutes by default. Both processes are on one machine: the software RNIC measures
/// inter-process communication, an RNIC (--provider ibv) its own loopback, not a network.
#[derive(Debug, Args)]
#[command(
    mut_arg("repetitions", |arg| arg.default_value("3")),
    mut_arg("duration_ms", |arg| arg.default_value("300")),
    after_help = "Examples:\n  farcall bench remio\n  farcall bench remio --against verbs --json | jq \
                  '.tables[].rows'\n  \
                  farcall bench remio --workload mixed --threads 1,2,4,8 --window-kib 0,64,512\n  \
                  farcall bench remio --workload random-write --combining merge+chain --waiting \
                  busy,event,adaptive\n  \
                  farcall bench remio --workload adjacent-write --memory pre,dyn,attached --size 65536"
)]
pub struct RemioBench {
    /// Kinds of requests; may be given several times, or separated by commas [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&WORKLOADS))]
    workload: Vec<Workload>,
    /// How requests are combined; several as above [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&COMBININGS))]
    combining: Vec<Combining>,
    /// Maximum number of KiB in flight; 0 is without admission. Several as above.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [0, 64],
          value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    window_kib: Vec<u64>,
    /// Number of threads that submit requests; several as above.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [2],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Local memory of the requests; several as above [default: pre].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&MEMORIES))]
    memory: Vec<LocalMemory>,
    /// Thread that polls for completions, and its wait strategy; several as above [default: adaptive].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&POLLINGS))]
    waiting: Vec<Polling>,
    /// Length of a request in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    size: u32,
    /// Number of requests that a thread submits before it waits for all of them.
    #[arg(long, value_name = "REQUESTS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// Number of queue pairs of the session.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Memory in MiB that the second process grants.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    region_mib: u32,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    repeat: RepetitionArgs,
    /// Seed of offsets and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also measure this limit in the same run.
    #[arg(long)]
    against: Option<Against>,
}

/// Systems measured for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    /// The same requests by one thread directly on one queue pair: one at a time, and with one burst outstanding.
    Verbs,
}

const WORKLOADS: [NamedValue<Workload>; 6] = [
    (Workload::ADJACENT_READS, "adjacent-read", "READs of consecutive pages"),
    (Workload::ADJACENT_WRITES, "adjacent-write", "WRITEs of consecutive pages"),
    (Workload::RANDOM_READS, "random-read", "READs of pages of which no two are adjacent"),
    (Workload::RANDOM_WRITES, "random-write", "WRITEs of pages of which no two are adjacent"),
    (Workload::MIXED, "mixed", "Three quarters READs, one quarter WRITEs of such pages"),
    (Workload::TABLE_1, "table-1", "READs, two of six adjacent, as in table I of RDMAbox"),
];

const COMBININGS: [NamedValue<Combining>; 4] = [
    (Combining::Single, "single", "One work request and one doorbell for each"),
    (Combining::Doorbell, "chain", "Several work requests with one doorbell"),
    (Combining::Merge, "merge", "One work request for adjacent requests"),
    (Combining::MergeAndChain, "merge+chain", "Both; called hybrid in RDMAbox"),
];

const MEMORIES: [NamedValue<LocalMemory>; 3] = [
    (LocalMemory::Copied, "pre", "Copied through a registered pool (preMR)"),
    (
        LocalMemory::RegisteredEach,
        "dyn",
        "Registered for each request (dynMR); such requests are not combined",
    ),
    (LocalMemory::RegisteredOnce, "attached", "Registered once by the program; nothing is copied"),
];

const POLLINGS: [NamedValue<Polling>; 6] = [
    (Polling::Inline, "inline", "The thread that submits polls continuously"),
    (Polling::Busy, "busy", "A separate thread polls continuously"),
    (
        Polling::Event,
        "event",
        "A separate thread sleeps until an event, and polls for one completion at a time",
    ),
    (
        Polling::EventBatch,
        "event-batch",
        "A separate thread sleeps until an event, and polls for a batch of completions at a time",
    ),
    (Polling::NaiveHybrid, "hybrid", "A separate thread polls a fixed number of times after each event"),
    (
        Polling::Adaptive,
        "adaptive",
        "A separate thread sleeps after 120 consecutive polls without a completion",
    ),
];

/// Returns the named values, or the default ones if none is named.
fn named_or<T: Copy>(named: &[T], usual: &[T]) -> Vec<T> {
    if named.is_empty() { usual.to_vec() } else { named.to_vec() }
}

impl RemioBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let selected = self.nic.open()?;
        let plan = self.plan()?;
        bench_args::run(console, |progress| {
            remio_bench::run(&selected, &plan, progress).map_err(|error| {
                Failure::because("cannot measure one-sided I/O", &*error)
                    .remedy("find out what is missing: farcall doctor")
            })
        })
    }

    fn plan(&self) -> Result<RemioPlan, Failure> {
        let usual = RemioTask::of(Workload::MIXED, Combining::MergeAndChain);
        Ok(RemioPlan {
            env: self.repeat.env(self.seed)?,
            workloads: named_or(&self.workload, &Workload::ALL),
            combinings: named_or(&self.combining, &COMBININGS.map(|(combining, ..)| combining)),
            windows: self.window_kib.iter().map(|kib| (*kib > 0).then_some(kib << 10)).collect(),
            threads: self.threads.clone(),
            memories: named_or(&self.memory, &[usual.memory]),
            pollings: named_or(&self.waiting, &[usual.polling]),
            usual: RemioTask {
                burst: self.burst,
                len_bytes: self.size as usize,
                region_bytes: (self.region_mib as usize) << 20,
                connections: self.connections as usize,
                ..usual
            },
            with_verbs: self.against == Some(Against::Verbs),
        })
    }
}
