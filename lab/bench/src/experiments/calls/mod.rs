//! Calls to an echo service in another process, under one preset.

mod callee;
mod client;
mod requesters;

pub(crate) use callee::Callee;
pub use callee::Job;
pub(crate) use client::{CallClient, Choice};
pub(crate) use requesters::Topology;

use super::ExperimentError;
use super::clients;
use super::env::ExperimentEnv;
use super::server::{ServerError, ServerProcess};
use super::service::{Served, Service};
use super::subject;
use crate::load::AUTO;
use crate::measure::{LatencyRecorder, LatencySummary};
use client::CallRun;
use farcall::rpc::tune::LinkProfile;
use farcall::select::Selection;
use farcall_link::{BatchSizing, MemoryPolicy, PRESETS};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::time::Duration;

/// Timeout of a reply, after which the server counts as crashed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Space for the header and tail of a slot, rounded such that slot lengths remain odd in units of 128 bytes (see
/// `Geometry::default`).
const SLOT_OVERHEAD_BYTES: u32 = 128;
/// Maximum length of requests and results for which larger slots than the default are configured.
const SLOT_PAYLOAD_MAX_BYTES: u32 = 16 << 10;

/// Alias that keeps serde's derive from borrowing fields of this type from its input.
type PresetName = &'static str;

/// A measurement of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallTask {
    /// A name of the preset table, or [`AUTO`].
    #[serde(deserialize_with = "named_preset")]
    pub(crate) preset: PresetName,
    pub(crate) callee: Callee,
    /// Outstanding calls on each connection.
    pub(crate) window: u32,
    /// Number of client processes, each with as many connections.
    pub(crate) clients: u32,
    /// Connections of a client, all run by one thread; number of requesters if the topology has those.
    pub(crate) connections: u32,
    /// Connections between requesters and responders.
    pub(crate) topology: Topology,
    /// Number of additional connections without calls.
    pub(crate) silent_connections: u32,
    /// Batch size, or `None` if calls are not batched.
    pub(crate) batch: Option<BatchSizing>,
    /// Inlining and signalling; the preset's own if `None`.
    pub(crate) memory: Option<MemoryPolicy>,
    /// Calls a second of all clients together, at fixed intervals; if `None`, each call begins when another has
    /// completed.
    pub(crate) rate: Option<u32>,
}

/// Results of one run of calls.
#[derive(Debug, Clone)]
pub(crate) struct CallSample {
    /// Round trips.
    pub(crate) figures: subject::Sample,
    /// Latencies, if single calls were timed.
    pub(crate) latency: Option<LatencySummary>,
    /// Mean time until all calls that were outstanding together had their results.
    pub(crate) round_mean_us: f64,
    pub(crate) verbs_per_call: f64,
    pub(crate) empty_reads_per_call: f64,
    pub(crate) server_cpu_us_per_call: f64,
    /// Processor time of this process, or of all client processes.
    pub(crate) client_cpu_us_per_call: f64,
    /// Choice of the library, if it chose the preset; that of the first client if there are several.
    pub(crate) choice: Option<Choice>,
    /// R and F at the end, of each connection that fetches results.
    pub(crate) tunings: Vec<(u32, u32)>,
    /// Scheduled calls that were never sent, because previous ones had not completed.
    pub(crate) unsent: u64,
    /// Share of a responder's mailboxes that is empty at the time of a reply; NaN with one responder.
    pub(crate) empty_share: f64,
}

impl CallTask {
    /// Returns a task of small calls, one at a time on each connection.
    pub(crate) const fn small(preset: &'static str) -> Self {
        Self {
            preset,
            callee: Callee::Head,
            window: 1,
            clients: 1,
            connections: 1,
            topology: Topology::Private,
            silent_connections: 0,
            batch: None,
            memory: None,
            rate: None,
        }
    }

    /// Returns the lengths of the request and response slots that the calls need, where the default is too small.
    fn slots_bytes(&self) -> [Option<u32>; 2] {
        [self.callee.request_len_bytes(), self.callee.reply_len_bytes()].map(|len_bytes| {
            let is_longer = (4096 + 1..=SLOT_PAYLOAD_MAX_BYTES).contains(&len_bytes);
            is_longer.then(|| (len_bytes + SLOT_OVERHEAD_BYTES).next_multiple_of(SLOT_OVERHEAD_BYTES))
        })
    }

    /// Returns the number of calls outstanding at a time on all connections of a client.
    fn at_once(&self) -> u32 {
        self.window * self.connections
    }

    /// Returns whether single calls are timed. Otherwise only rounds are timed, in which all outstanding calls
    /// complete.
    fn times_calls(&self) -> bool {
        (self.at_once() == 1 && self.topology == Topology::Private) || self.rate.is_some()
    }
}

impl fmt::Display for CallTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.preset, self.workload())
    }
}

impl CallTask {
    /// Returns a description without the preset.
    pub(crate) fn workload(&self) -> String {
        let mut text = match self.callee {
            Callee::Head => "echo".to_owned(),
            Callee::Work { us } => format!("calls of {us} µs"),
            Callee::Block { len_bytes } => format!("replies of {len_bytes} B"),
            Callee::Job(job) => job.to_string(),
        };
        text += &format!(", window {}", self.window);
        text.extend(self.batch.map(|batch| format!(", {batch}")));
        text.extend(self.rate.map(|rate| format!(", {rate}/s")));
        for (count, what) in [(self.clients, "clients"), (self.connections, "connections")] {
            text.extend((count > 1).then(|| format!(", {count} {what}")));
        }
        text += &self.topology.to_string();
        if self.silent_connections > 0 {
            text += &format!(" and {} silent", self.silent_connections);
        }
        text
    }
}

/// Starts an echo service at the serving end of `env`.
///
/// # Errors
/// Returns an error if the service cannot be started.
pub(crate) fn start_echo(
    env: &ExperimentEnv,
    nic: &Selection,
    threads: u16,
) -> Result<ServerProcess, ServerError> {
    ServerProcess::serve(env, &Service { nic: nic.clone(), what: Served::Echo { threads } })
}

/// Environment of the runs.
pub(crate) struct SharedContext<'a> {
    pub(crate) env: &'a ExperimentEnv,
    /// The RNIC of both ends.
    pub(crate) nic: &'a Selection,
    /// Profile with which connections start instead of a probe.
    pub(crate) profile: Option<&'a LinkProfile>,
    pub(crate) server: &'a ServerProcess,
}

/// Connects, calls for the environment's duration and disconnects; in client processes if there are several clients.
///
/// # Errors
/// Returns an error if no client supports the preset, if the service cannot be reached, or if a call fails.
pub(crate) fn measure(task: &CallTask, context: &SharedContext<'_>) -> Result<CallSample, ExperimentError> {
    let SharedContext { env, server, .. } = context;
    let client_of = |number| CallClient::new(task, context, number);
    let (runs, [before, after]) = if task.clients == 1 {
        let mut before = None;
        let run = client_of(0)?.run(|| {
            before = Some(server.cpu_time()?);
            Ok(())
        })?;
        (vec![run], [before.unwrap_or_default(), server.cpu_time()?])
    } else {
        let clients = (0..task.clients).map(client_of).collect::<Result<Vec<_>, _>>()?;
        clients::run_all(env, &clients, || server.cpu_time())?
    };
    Ok(CallSample::of(task, &runs, after.saturating_sub(before)))
}

impl CallSample {
    fn of(task: &CallTask, runs: &[CallRun], server_cpu: Duration) -> Self {
        let sum = |count: fn(&CallRun) -> u64| runs.iter().map(count).sum::<u64>() as f64;
        let calls = sum(|run| run.calls);
        let mut latencies = LatencyRecorder::default();
        runs.iter().for_each(|run| latencies.add(&run.latencies));
        let latency = latencies.summary();
        let us_per_call = |cpu: Duration| cpu.as_secs_f64() * 1e6 / calls;
        let each = if task.times_calls() { 1 } else { task.at_once() };
        let per_second: f64 =
            runs.iter().map(|run| run.ended as f64 * 1e9 / run.elapsed_ns.max(1) as f64).sum();
        let per_second = per_second * f64::from(each);
        Self {
            figures: subject::Sample {
                per_second,
                bytes_per_second: per_second * f64::from(task.callee.reply_len_bytes()),
                ..subject::Sample::of_latency(&latency, if task.times_calls() { 1.0 } else { f64::NAN })
            },
            latency: task.times_calls().then_some(latency),
            round_mean_us: latency.mean_ns / 1e3,
            verbs_per_call: sum(|run| run.verbs) / calls,
            empty_reads_per_call: sum(|run| run.empty_reads) / calls,
            server_cpu_us_per_call: us_per_call(server_cpu),
            client_cpu_us_per_call: us_per_call(runs.iter().map(|run| run.cpu).sum()),
            choice: runs.iter().find_map(|run| run.choice.clone()),
            tunings: runs.iter().flat_map(|run| run.tunings.iter().copied()).collect(),
            unsent: runs.iter().map(|run| run.unsent).sum(),
            empty_share: runs.iter().find_map(|run| run.empty_share).unwrap_or(f64::NAN),
        }
    }
}

fn named_preset<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    let name = String::deserialize(from)?;
    let known = PRESETS.iter().map(|preset| preset.name).chain([AUTO]).find(|known| *known == name);
    known.ok_or_else(|| D::Error::custom(format!("no preset {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_results_get_slots_that_hold_them() {
        let slot = |len_bytes| {
            let [request, response] =
                CallTask { callee: Callee::Block { len_bytes }, ..CallTask::small("fetch") }.slots_bytes();
            assert_eq!(request, None);
            response
        };
        assert_eq!((slot(64), slot(4096), slot(16_384), slot(1 << 20)), (None, None, Some(16_512), None));
        assert!(slot(5000).unwrap().is_multiple_of(64));
        let job = Job { request_bytes: 5_000, response_bytes: 8, process_us: 0 };
        let task = CallTask { callee: Callee::Job(job), ..CallTask::small("fetch") };
        assert_eq!(task.slots_bytes(), [slot(5_000), None]);
    }

    #[test]
    fn averages_costs_over_clients_and_reports_the_first_choice() {
        let run = |calls, cpu_us, preset: &str| CallRun {
            calls,
            cpu: Duration::from_micros(cpu_us),
            choice: Some(Choice { preset: preset.to_owned(), because: "it is cheap".to_owned() }),
            ..CallRun::of(LatencyRecorder::default(), 1)
        };
        let runs = [run(10, 30, "fetch"), run(30, 50, "herd")];
        let sample = CallSample::of(&CallTask::small(AUTO), &runs, Duration::from_micros(20));
        assert_eq!((sample.server_cpu_us_per_call, sample.client_cpu_us_per_call), (0.5, 2.0));
        assert_eq!(sample.choice.unwrap().to_string(), "fetch: it is cheap");
    }

    #[test]
    fn tasks_travel_with_the_preset_and_with_the_choice() {
        for preset in ["herd", AUTO] {
            let task = CallTask::small(preset);
            let text = serde_json::to_string(&task).unwrap();
            assert_eq!(serde_json::from_str::<CallTask>(&text).unwrap(), task);
            let unknown = serde_json::from_str::<CallTask>(&text.replace(preset, "none")).unwrap_err();
            assert!(unknown.to_string().contains("no preset \"none\""), "{unknown}");
        }
    }
}
