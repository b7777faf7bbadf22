//! `farcall remio bench`.

use crate::commands::choice::{Choice, one_of};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, ValueEnum};
use farcall_bench::experiments::remio_bench::{self, RemioPlan};
use farcall_bench::remio::{Combining, LocalMemory, Polling, RemioTask, Workload};

/// Measure READs and WRITEs of another process's memory: single, chained, merged, with and without admission.
///
/// A donor process grants memory and sleeps. Threads of this process submit bursts of requests through one session,
/// and wait for each burst. Every choice is measured with every other, all interleaved; beside them bursts that are
/// held back until they are whole, for which the counts of work requests are no matter of time. Every byte that is
/// read is checked, and all that was written at the end; a wrong one ends the measurement with exit code 1. By
/// default about two minutes. Both processes are on one machine: the software RNIC measures inter-process
/// communication, an RNIC (--provider ibv) its own loopback, not a network.
#[derive(Debug, Args)]
#[command(
    mut_arg("repetitions", |arg| arg.default_value("3")),
    mut_arg("duration_ms", |arg| arg.default_value("300")),
    after_help = "Examples:\n  farcall remio bench\n  farcall remio bench --against verbs --json | jq \
                  '.tables[].rows'\n  \
                  farcall remio bench --workload mixed --threads 1,2,4,8 --window-kib 0,64,512\n  \
                  farcall remio bench --workload random-write --combining merge+chain --waiting \
                  busy,event,adaptive\n  \
                  farcall remio bench --workload adjacent-write --memory pre,dyn,attached --size 65536"
)]
pub struct Bench {
    /// Which requests; may be given several times, or separated by commas. By default all.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&WORKLOADS))]
    workload: Vec<Workload>,
    /// How requests are put together; several as above. By default all.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&COMBININGS))]
    combining: Vec<Combining>,
    /// KiB in flight that admission allows; 0 is without admission. Several as above.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [0, 64],
          value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    window_kib: Vec<u64>,
    /// Threads that submit; several as above.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [2],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Memory that requests use; several as above. By default pre.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&MEMORIES))]
    memory: Vec<LocalMemory>,
    /// Thread that polls for completions, and how it waits; several as above. By default adaptive.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = one_of(&POLLINGS))]
    waiting: Vec<Polling>,
    /// Bytes of a request.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    size: u32,
    /// Requests that a thread submits before it waits for all of them.
    #[arg(long, value_name = "REQUESTS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// Queue pairs of the session.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// MiB that the donor grants.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    region_mib: u32,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
    /// Seed of places and bytes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure the limit in the same run.
    #[arg(long)]
    against: Option<Against>,
}

/// Systems measured for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    /// The same requests of one thread on one queue pair, nothing between: one at a time, and a burst outstanding.
    Verbs,
}

const WORKLOADS: [Choice<Workload>; 6] = [
    (Workload::ADJACENT_READS, "adjacent-read", "READs of one page after the other"),
    (Workload::ADJACENT_WRITES, "adjacent-write", "WRITEs of one page after the other"),
    (Workload::RANDOM_READS, "random-read", "READs of pages of which no two are adjacent"),
    (Workload::RANDOM_WRITES, "random-write", "WRITEs of pages of which no two are adjacent"),
    (Workload::MIXED, "mixed", "Three quarters READs, one quarter WRITEs of such pages"),
    (Workload::TABLE_1, "table-1", "READs, two of six adjacent, as in table I of RDMAbox"),
];

const COMBININGS: [Choice<Combining>; 4] = [
    (Combining::Single, "single", "A work request and a doorbell for each"),
    (Combining::Doorbell, "chain", "Several work requests behind one doorbell"),
    (Combining::Merge, "merge", "Adjacent requests are one work request"),
    (Combining::MergeAndChain, "merge+chain", "Both: what RDMAbox calls hybrid"),
];

const MEMORIES: [Choice<LocalMemory>; 3] = [
    (LocalMemory::Copied, "pre", "Copied through a registered pool (preMR)"),
    (LocalMemory::RegisteredEach, "dyn", "Registered for each request (dynMR); such requests go alone"),
    (LocalMemory::RegisteredOnce, "attached", "Registered once by the program; nothing is copied"),
];

const POLLINGS: [Choice<Polling>; 6] = [
    (Polling::Inline, "inline", "The one thread that submits, without end"),
    (Polling::Busy, "busy", "A thread of its own, without end"),
    (Polling::Event, "event", "It sleeps until an event, and takes one completion at a look"),
    (Polling::EventBatch, "event-batch", "It sleeps until an event, and takes completions by batches"),
    (Polling::NaiveHybrid, "hybrid", "It looks a fixed number of times after each event"),
    (Polling::Adaptive, "adaptive", "It sleeps after 120 empty looks in a row"),
];

/// Returns the named values, or the default ones if none is named.
fn named_or<T: Copy>(named: &[T], usual: &[T]) -> Vec<T> {
    if named.is_empty() { usual.to_vec() } else { named.to_vec() }
}

impl Bench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let chosen = self.nic.choose()?;
        let plan = self.plan()?;
        measuring::run(console, |progress| {
            remio_bench::run(&chosen, &plan, progress).map_err(|error| {
                Failure::because("cannot measure one-sided I/O", &*error)
                    .remedy("see what is missing: farcall doctor")
            })
        })
    }

    fn plan(&self) -> Result<RemioPlan, Failure> {
        let usual = RemioTask::of(Workload::MIXED, Combining::MergeAndChain);
        Ok(RemioPlan {
            stage: self.stage.stage(self.seed)?,
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
