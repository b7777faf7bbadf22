//! `farcall bench kv`, also `farcall kv bench`: the main benchmark.

use crate::commands::batch_args::BatchArgs;
use crate::commands::bench_args::{self, RepetitionArgs};
use crate::commands::call_args::{CallArgs, Named, call_presets, chosen_presets, presets_or_all};
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::{RemoteArgs, cannot_measure};
use crate::commands::tune::ProfileArg;
use crate::commands::value_names::{NamedValue, one_of};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::kv_main::busy::{self, KvBusyPlan};
use farcall_bench::experiments::kv_main::{self, FrontEnd, KvMainPlan};
use farcall_bench::experiments::{ExperimentEnv, Reach};
use farcall_bench::foreign_store::{ForeignStore, Socket};
use farcall_bench::rivals::Rival;
use farcall_bench::workload::{Distribution, RecordShape, Workload};

/// Measure the key-value service through every front end, on this machine, in about a minute.
///
/// Starts its own server processes on one core and the client on another. Loads records, runs YCSB through each front
/// end in interleaved repetitions, checks every value that it reads, counts system calls and heap operations, and kills
/// and restarts a server. RPC is measured with the presets server-reply and rf-rpc by default. pilaf, farm and farm-var
/// are other stores, whose clients use RDMA READ. Prints tables of medians. Exits with 1 if a check fails.
///
/// Both processes are on one machine: the software RNIC measures inter-process communication, and an RNIC (--provider
/// ibv) its own loopback, not a network. To measure between two hosts, start one half on each (--listen, --connect);
/// then only speed is measured.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench kv\n  farcall bench kv --preset all --workload all --json > kv.json\n  farcall bench kv --preset pilaf --preset farm --workload B\n  \
                        farcall bench kv --against memcached,redis\n  \
                        farcall bench kv --preset rf-rpc --window 64 --batch 16 --batch auto:20\n  \
                        farcall bench kv --listen 0.0.0.0:11400 --provider ibv       on the server's host, and on the client's:\n  \
                        farcall bench kv --connect server:11400 --provider ibv\n  \
                        farcall bench kv --workload A --workload F --value-len 32-256 --connections 4\n  \
                        farcall bench kv --busy 2,8,20       the default client and the TCP listener next to spinning programs\n  \
                        farcall bench kv --workload B --distribution uniform --rate 200000 --window 64 --clients 2"
)]
pub struct KvBench {
    /// Preset of the calls to the store, or name of another store. May be given several times.
    #[arg(long, value_name = "NAME", value_parser = presets_or_all(all_presets()))]
    preset: Vec<String>,
    /// Also measure these programs over TCP and a Unix socket, each with one thread and without persistence.
    #[arg(long, value_name = "STORE", value_delimiter = ',', value_parser = one_of(&OTHER_STORES), conflicts_with = "connect")]
    against: Vec<ForeignStore>,
    /// Measure the default client on busy cores instead: GETs of the blocking client over verbs, alternating with the TCP
    /// listener, while PROGRAMS other programs spin. Makes at least 20 pairs of measurements for each number.
    #[arg(long, value_name = "PROGRAMS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=256))]
    #[arg(conflicts_with_all = ["preset", "against", "workload", "distribution", "connect", "listen"])]
    busy: Vec<u32>,
    #[command(flatten)]
    calls: CallArgs,
    #[command(flatten)]
    batches: BatchArgs,
    /// Run these YCSB workloads instead of C. May be given several times. E needs range scans, which the store does not
    /// have.
    #[arg(long, ignore_case = true, value_parser = one_of(&WORKLOADS))]
    workload: Vec<&'static [Workload]>,
    /// Request distribution [default: that of the workload].
    #[arg(long, value_parser = one_of(&DISTRIBUTIONS))]
    distribution: Option<Distribution>,
    /// Number of records.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    records: u32,
    /// Length of each key in bytes.
    #[arg(long, default_value_t = 16, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(8..=250))]
    key_len: u16,
    /// Length of each value in bytes, or a range from which each record draws its length: 32-256.
    #[arg(long, default_value = "32", value_name = "BYTES|MIN-MAX", value_parser = value_lens)]
    value_len: ValueLens,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    profile: ProfileArg,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    html: bench_args::HtmlArg,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Lengths of the shortest and of the longest values in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ValueLens(u16, u16);

/// Maximum length of a measured value in bytes.
const VALUE_LEN_BYTES_MAX: u16 = 32_768;

fn value_lens(text: &str) -> Result<ValueLens, String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let len = |text: &str| text.parse::<u16>().ok().filter(|len| (8..=VALUE_LEN_BYTES_MAX).contains(len));
    match (len(min), len(max)) {
        (Some(min), Some(max)) if min <= max => Ok(ValueLens(min, max)),
        _ => Err(format!(
            "{text:?} is neither a length from 8 to {VALUE_LEN_BYTES_MAX} nor a range of such lengths, such as 32-256"
        )),
    }
}

const OTHER_STORES: [NamedValue<ForeignStore>; 2] = [
    (ForeignStore::Memcached, "memcached", "memcached (Debian: apt-get install memcached)"),
    (ForeignStore::Redis, "redis", "Redis (Debian: apt-get install redis-server)"),
];

/// Returns the presets of calls, and other stores.
fn all_presets() -> impl Iterator<Item = Named> {
    call_presets().chain(Rival::ALL.map(|rival| (rival.name(), rival.summary())))
}

const WORKLOADS: [NamedValue<&[Workload]>; 6] = [
    (&[Workload::A], "A", "Half reads, half updates"),
    (&[Workload::B], "B", "95 % reads, 5 % updates"),
    (&[Workload::C], "C", "Reads only"),
    (&[Workload::D], "D", "95 % reads of recent records, 5 % inserts"),
    (&[Workload::F], "F", "Half reads, half read-modify-writes"),
    (&[Workload::A, Workload::B, Workload::C, Workload::D, Workload::F], "all", "All of them"),
];

const DISTRIBUTIONS: [NamedValue<Distribution>; 3] = [
    (Distribution::Zipfian, "zipfian", "Skewed by .99, with the popular records spread over all keys"),
    (Distribution::Uniform, "uniform", "All records with the same probability"),
    (Distribution::Latest, "latest", "Skewed by .99, with the newest record as the most popular"),
];

impl KvBench {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If nothing can be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.remote.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let env = self.remote.env(&self.repeat, self.seed)?;
        if !self.busy.is_empty() {
            return self.run_busy(console, env);
        }
        let plan = self.plan(env)?;
        bench_args::run_self_warning(console, &self.html, |progress| {
            kv_main::run(&plan, progress)
                .map_err(|error| cannot_measure("cannot measure the key-value service", &*error, &plan.env))
        })
    }

    fn run_busy(&self, console: Console, env: ExperimentEnv) -> Result<Exit, Failure> {
        let nic = self.nic.open()?.selection;
        let plan = KvBusyPlan { env, nic, programs: self.busy.clone() };
        bench_args::run_with_html(console, &self.html, |progress| {
            busy::run(&plan, progress).map_err(|error| {
                cannot_measure("cannot measure the key-value service on busy cores", &*error, &plan.env)
            })
        })
    }

    fn plan(&self, env: ExperimentEnv) -> Result<KvMainPlan, Failure> {
        let ValueLens(min, max) = self.value_len;
        let values = min.into()..=max.into();
        let shape = RecordShape::with_values(self.key_len.into(), values).map_err(|error| {
            Failure::because("cannot measure with such records", &error).exit(Exit::Usage)
        })?;
        let selected = self.nic.open()?;
        let profile = self.profile.read(&selected, self.remote.peer())?;
        let mut front_ends = vec![FrontEnd::Tcp];
        // A Unix socket works only on one host.
        front_ends.extend(env.server_half().is_none().then_some(FrontEnd::Unix));
        for store in OTHER_STORES.iter().map(|choice| choice.0).filter(|store| self.against.contains(store)) {
            front_ends.extend(Socket::ALL.map(|socket| FrontEnd::Foreign(store, socket)));
        }
        // The first and the last front ends are killed in the test. The default preset, which begins the table, is
        // last here.
        let is_usual = |name: &str| ["server-reply", "rf-rpc"].contains(&name);
        let presets = chosen_presets(&self.preset, all_presets(), is_usual);
        front_ends.extend(presets.into_iter().rev().filter_map(FrontEnd::of_preset));
        let workloads = if self.workload.is_empty() { vec![Workload::C] } else { self.workload.concat() };
        let with_distribution =
            |workload: Workload| (workload, self.distribution.unwrap_or_else(|| workload.distribution()));
        Ok(KvMainPlan {
            env,
            records: self.records.into(),
            shape,
            workloads: workloads.into_iter().map(with_distribution).collect(),
            windows: self.calls.windows(),
            clients: self.calls.clients,
            connections: self.calls.connections,
            rate: self.calls.rate,
            batches: self.batches.batches(),
            front_ends,
            reach: Reach { nic: selected.selection, profile },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_one_length_or_a_range() {
        assert_eq!(value_lens("32"), Ok(ValueLens(32, 32)));
        assert_eq!(value_lens("8-1000"), Ok(ValueLens(8, 1000)));
        for text in ["", "7", "32769", "9-8", "8-", "-8", "8-9-10", "a"] {
            assert!(value_lens(text).unwrap_err().contains("32-256"), "{text:?}");
        }
    }
}
