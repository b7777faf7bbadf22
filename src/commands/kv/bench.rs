//! `farcall kv bench`: the main job.

use crate::commands::choice::{Choice, one_of};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::tune::ProfileArg;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::Stage;
use farcall_bench::experiments::kv_main::{self, KvMainPlan};
use farcall_bench::workload::{Distribution, RecordShape, Workload};

/// Measure the key-value service behind every front end, on this machine, in about a minute.
///
/// Starts server processes of its own, pinned to one core, with the client pinned to another; loads records; runs YCSB
/// over each front end, interleaved; checks every value read; counts system calls and heap operations; kills a server
/// and starts it again. Prints tables of medians. Exits with 1 if anything was wrong.
///
/// Between the two processes lies one machine: the software RNIC measures inter-process communication, and an RNIC
/// (--provider ibv) its own loopback, not a network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall kv bench\n  farcall kv bench --all --json > kv.json\n  \
                        farcall kv bench --workload A --workload F --value-len 1024 --connections 4")]
pub struct Bench {
    /// Run workloads A, B, C, D and F, and C with uniform requests, too.
    #[arg(long, conflicts_with = "workload")]
    all: bool,
    /// Run these YCSB workloads instead of C. May be given several times. E needs range scans, which the store does not
    /// have.
    #[arg(long, ignore_case = true, value_parser = one_of(&WORKLOADS))]
    workload: Vec<Workload>,
    /// Request distribution instead of each workload's own.
    #[arg(long, value_parser = one_of(&DISTRIBUTIONS))]
    distribution: Option<Distribution>,
    /// Outstanding operations on each connection. May be given several times; by default 1 and 16.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    window: Vec<u32>,
    /// Connections, all run by one client thread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    connections: u32,
    /// Records loaded.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    records: u32,
    /// Bytes of each key.
    #[arg(long, default_value_t = 16, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(8..=250))]
    key_len: u16,
    /// Bytes of each value.
    #[arg(long, default_value_t = 32, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(16..=32_768))]
    value_len: u16,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    profile: ProfileArg,
    #[command(flatten)]
    stage: StageArgs,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const WORKLOADS: [Choice<Workload>; 5] = [
    (Workload::A, "A", "Half reads, half updates"),
    (Workload::B, "B", "95 % reads, 5 % updates"),
    (Workload::C, "C", "Reads only"),
    (Workload::D, "D", "95 % reads of young records, 5 % inserts"),
    (Workload::F, "F", "Half reads, half read-modify-writes"),
];

const DISTRIBUTIONS: [Choice<Distribution>; 3] = [
    (Distribution::Zipfian, "zipfian", "Skewed by .99, the popular records spread over all"),
    (Distribution::Uniform, "uniform", "Every record alike"),
    (Distribution::Latest, "latest", "Skewed by .99, the youngest record first"),
];

impl Bench {
    /// Measures and prints.
    ///
    /// # Errors
    /// When it cannot be measured at all.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let plan = self.plan(self.stage.stage(self.seed)?)?;
        measuring::run(console, |progress| {
            kv_main::run(&plan, progress).map_err(|error| {
                Failure::because("cannot measure the key-value service", &*error)
                    .remedy("see what is missing: farcall doctor")
            })
        })
    }

    fn plan(&self, stage: Stage) -> Result<KvMainPlan, Failure> {
        let shape = RecordShape::new(self.key_len.into(), self.value_len.into()).map_err(|error| {
            Failure::because("cannot measure with such records", &error).exit(Exit::Usage)
        })?;
        let chosen = self.nic.choose()?;
        let profile = self.profile.read(&chosen)?;
        let mut plan = KvMainPlan::new(stage, chosen.selection, self.all);
        plan.profile = profile;
        if !self.workload.is_empty() {
            plan.workloads =
                self.workload.iter().map(|workload| (*workload, workload.distribution())).collect();
        }
        if let Some(distribution) = self.distribution {
            plan.workloads.iter_mut().for_each(|(_, chosen)| *chosen = distribution);
        }
        if !self.window.is_empty() {
            plan.windows.clone_from(&self.window);
        }
        plan.records = self.records.into();
        plan.shape = shape;
        plan.connections = self.connections;
        Ok(plan)
    }
}
