//! `farcall page status`.

use crate::commands::memory::size;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_paging::{Flow, Latency, RunPaths, Status as State, all_runs, status};
use serde_json::json;
use std::fmt::Write;
use std::time::Duration;

/// Print the status of paged programs: faults, latencies of pages, replicas.
///
/// Exits with 3 if there is no such program.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall page status\n  farcall page status 4711 --json | jq .reads.p99_ns"
)]
pub struct Status {
    /// Process ID of farcall page [default: all].
    pid: Option<u32>,
}

impl Status {
    /// Reads the state and prints it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let cannot = |error: std::io::Error| {
            Failure::because("cannot read the status of paged programs", &error).remedy("run it as root")
        };
        let mut all = all_runs().map_err(cannot)?;
        all.retain(|paths| self.pid.is_none_or(|pid| *paths == RunPaths::of(pid)));
        if all.is_empty() {
            console.print(&"no program is paged", &json!([]))?;
            return Ok(Exit::Negative);
        }
        let states = all.into_iter().map(status).collect::<Result<Vec<_>, _>>().map_err(cannot)?;
        let text: Vec<String> = states.iter().map(status_text).collect();
        let json: Vec<_> = states.iter().map(to_json).collect();
        console.print(&text.join("\n"), &json.into())?;
        Ok(Exit::Success)
    }
}

fn status_text(state: &State) -> String {
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), size::text);
    let mut text = format!("{}: {}", state.pid, state.config.program);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n  resident  {} of {}\n  swap      {} of {} on {}, priority {}",
        known(state.resident_now_bytes),
        size::text(state.config.resident_bytes),
        known(state.used_bytes),
        size::text(state.config.size_bytes),
        state.device.as_deref().unwrap_or("no device"),
        state.priority.map_or_else(|| "?".to_owned(), |priority| priority.to_string()),
    );
    let faults = state.major_faults.map_or_else(|| "?".to_owned(), |faults| faults.to_string());
    let _ = write!(text, "\n  faults    {faults} waits for a page");
    let _ = write!(text, "\n  reads     {}", times(&state.reads, state.bytes_read));
    let _ = write!(text, "\n  writes    {}", times(&state.writes, state.bytes_written));
    let _ = write!(text, "\n  failures  {}", state.failures);
    let _ = write!(text, "\n  flow      {}", flow(&state.flow));
    let _ = write!(text, "\n  replicas  {}", redundancy(state));
    match state.pager_pid {
        Some(pid) => {
            let replicas: Vec<_> =
                state.replicas.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let _ = write!(text, "\n  pager     {pid}: {}", replicas.join(", "));
        }
        None => text.push_str("\n  pager     not running; if it does not start: farcall page cleanup"),
    }
    text
}

/// Describes whether every slab has the configured number of replicas.
fn redundancy(state: &State) -> String {
    let count = |of: &str| state.replicas.iter().find(|(name, _)| name == of).map_or(0, |(_, value)| *value);
    let (slabs, degraded, copying) = (count("slabs_in_use"), count("slabs_degraded"), count("slabs_copying"));
    let wanted = state.config.replicas;
    match (degraded, copying) {
        (0, _) => format!("in sync: {slabs} slabs with {wanted} replicas"),
        (_, 0) => format!("degraded: {degraded} of {slabs} slabs with fewer than {wanted} replicas"),
        _ => format!(
            "copying: {degraded} of {slabs} slabs with fewer than {wanted} replicas, {copying} being copied"
        ),
    }
}

fn flow(flow: &Flow) -> String {
    let merged = flow.merge_ratio().map_or_else(
        || "no requests to memory nodes yet".to_owned(),
        |ratio| format!("{ratio:.2} work requests for each page of a replica"),
    );
    let (now, most) = (size::text(flow.in_flight_bytes), size::text(flow.window_bytes));
    format!(
        "{merged}; {now} in flight, at most {most} for each node; {} waits for this limit",
        flow.window_stalls
    )
}

fn times(latency: &Latency, bytes: u64) -> String {
    let time = |ns: Option<u64>| {
        ns.map_or_else(|| "more than 2 s".to_owned(), |ns| format!("{:?}", Duration::from_nanos(ns)))
    };
    match latency.count {
        0 => "none yet".to_owned(),
        count => format!(
            "{count}, {}: mean {}, p50 at most {}, p99 {}",
            size::text(bytes),
            time(latency.mean_ns),
            time(latency.p50_ns),
            time(latency.p99_ns)
        ),
    }
}

fn to_json(state: &State) -> serde_json::Value {
    let replicas: serde_json::Map<_, _> =
        state.replicas.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    // Numbers and strings can always be converted to JSON.
    let mut json = serde_json::to_value(state).unwrap_or_default();
    json["replicas_now"] = replicas.into();
    json["flow"]["merge_ratio"] = state.flow.merge_ratio().into();
    json
}
