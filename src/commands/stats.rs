//! `farcall stats PID`: counters of a process that uses Farcall.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::stats::{BlockReport, FlightRecord, StatsError, read_pid};
use farcall_softnic::FlightEvent;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Print the counters of a process that uses Farcall, alive or dead.
///
/// Counters lie in shared memory, so reading them disturbs nobody, and they stay readable after a crash, with the last
/// events of each queue pair. Exits with 3 if there are none.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall stats 4711\n  farcall stats 4711 --all\n  \
                        farcall stats 4711 --json | jq '.blocks[] | {label, counters}'")]
pub struct Stats {
    /// The process.
    pid: u32,
    /// Show endpoints that have ended, too.
    #[arg(long, short)]
    all: bool,
}

impl Stats {
    /// Reads and prints.
    ///
    /// # Errors
    /// When there are no counters of that process, or they cannot be read.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let mut report = read_pid(self.pid).map_err(|error| self.cannot_read(&error))?;
        let shows_all = self.all || !report.alive;
        report.blocks.retain(|block| block.live || shows_all);
        let state = if report.alive { "alive" } else { "dead" };
        let mut text = format!("process {} ({}), {state}", report.pid, report.command);
        for block in &report.blocks {
            describe(block, &mut text);
        }
        let blocks: Vec<Value> = report.blocks.iter().map(to_json).collect();
        let json =
            json!({ "pid": report.pid, "alive": report.alive, "command": report.command, "blocks": blocks });
        console.say(&text, &json)?;
        Ok(Exit::Success)
    }

    fn cannot_read(&self, error: &StatsError) -> Failure {
        let failure = Failure::because("cannot read counters", error).at(format!("process {}", self.pid));
        match error {
            StatsError::NotFound { .. } => failure
                .exit(Exit::Negative)
                .remedy("name a process of this user that uses Farcall, such as farcall kv serve"),
            _ => failure,
        }
    }
}

fn describe(block: &BlockReport, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\n{}{}", block.label, if block.live { "" } else { " (ended)" });
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

/// The words for an event: a queue pair's are the software RNIC's to tell.
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
