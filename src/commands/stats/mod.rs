//! `farcall stats`: processes that use Farcall, and their counters.

mod list;
mod watch;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::stats::{BlockReport, FlightRecord, Histogram, Report, StatsError, read_pid};
use farcall_softnic::FlightEvent;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Print the counters of a process that uses Farcall, also after its exit.
///
/// Without a process, lists all processes of this user. Counters are in shared memory: reading them does not disturb the
/// process, and they remain readable after a crash, with the last events of each queue pair. Exits with 3 if there are
/// no counters.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall stats\n  farcall stats 4711\n  farcall stats 4711 --watch    the changes of each second\n  farcall stats 4711 --all\n  \
                        farcall stats 4711 --json | jq '.blocks[] | {label, counters}'"
)]
pub struct Stats {
    /// Process ID [default: list all].
    pid: Option<u32>,
    /// Also show endpoints that have ended; in the list, processes that have exited.
    #[arg(long, short)]
    all: bool,
    /// Print the changes per second, every SECONDS, until the process exits or Ctrl-C [default: 1].
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", requires = "pid")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: Option<u32>,
}

impl Stats {
    /// Reads the counters and prints them.
    ///
    /// # Errors
    /// If there are no counters of that process, or they cannot be read.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let Some(pid) = self.pid else { return list::run(console, self.all) };
        if let Some(seconds) = self.watch {
            return watch::run(console, Duration::from_secs(seconds.into()), || read(pid));
        }
        let mut report = read(pid)?;
        let shows_all = self.all || !report.alive;
        report.blocks.retain(|block| block.live || shows_all);
        let state = if report.alive { "running" } else { "exited" };
        let mut text = format!("process {} ({}), {state}", report.pid, report.command);
        for block in &report.blocks {
            describe(block, &mut text);
        }
        let blocks: Vec<Value> = report.blocks.iter().map(to_json).collect();
        let json =
            json!({ "pid": report.pid, "alive": report.alive, "command": report.command, "blocks": blocks });
        console.print(&text, &json)?;
        Ok(Exit::Success)
    }
}

fn read(pid: u32) -> Result<Report, Failure> {
    read_pid(pid).map_err(|error| {
        let failure = Failure::because("cannot read counters", &error).at(format!("process {pid}"));
        match error {
            StatsError::NotFound { .. } => {
                failure.exit(Exit::Negative).remedy("name a process from the list of farcall stats")
            }
            _ => failure,
        }
    })
}

fn describe(block: &BlockReport, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\n{}{}", block.label, if block.live { "" } else { " (ended)" });
    if let Some(times) = Histogram::of(&block.counters) {
        let _ = write!(text, "\n  {}", histogram_text(&times));
        return;
    }
    for (name, value) in &block.counters {
        let _ = write!(text, "\n  {name:<26} {value}");
    }
    for record in &block.records {
        let (seconds, code, argument) = (record.at_ns as f64 / 1e9, record.code, record.argument);
        let _ = match words(block, record) {
            Some(words) => write!(text, "\n  at {seconds:.6} s: {}", words.text),
            None => write!(text, "\n  at {seconds:.6} s: event {code} ({argument})"),
        };
    }
}

/// Formats a histogram as one line.
fn histogram_text(times: &Histogram) -> String {
    let time = |ns: u64| format!("{:?}", Duration::from_nanos(ns));
    let at_most = |part| times.quantile_ns(part).map_or_else(|| "more than 2 s".to_owned(), time);
    match times.count() {
        0 => "none timed yet".to_owned(),
        count => {
            let mean = time(times.sum_ns / count);
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(at_most);
            format!("{count} timed: mean {mean}, p50 at most {p50}, p99 {p99}, p99.9 {p999}")
        }
    }
}

/// Decodes an event; only events of queue pairs of the software RNIC can be decoded.
fn words(block: &BlockReport, record: &FlightRecord) -> Option<FlightEvent> {
    let is_of_softnic = block.label.split(' ').next() == Some(farcall_softnic::NAME);
    FlightEvent::of(record.code, record.argument).filter(|_| is_of_softnic)
}

fn to_json(block: &BlockReport) -> Value {
    let counters: Map<String, Value> =
        block.counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    let records: Vec<Value> = block
        .records
        .iter()
        .map(|record| {
            let words = words(block, record);
            let (event, about) = words.map_or((None, None), |words| (Some(words.event), Some(words.about)));
            json!({
                "at_ns": record.at_ns, "event": event, "about": about,
                "code": record.code, "argument": record.argument,
            })
        })
        .collect();
    json!({ "label": block.label, "live": block.live, "counters": counters, "records": records })
}
