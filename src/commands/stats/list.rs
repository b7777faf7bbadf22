//! `farcall stats` without a process: lists processes.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use farcall::stats::{Report, StatsError, read_all};
use serde_json::{Value, json};
use std::fmt::Write;

/// Lists the running processes of this user or, with `with_exited`, all processes whose counters exist.
pub(super) fn run(console: Console, with_exited: bool) -> Result<Exit, Failure> {
    let cannot = |error: StatsError| {
        Failure::because("cannot list the processes that use Farcall", &error)
            .remedy("check whether this system supports counters: farcall doctor")
    };
    let mut reports = read_all().map_err(cannot)?;
    reports.retain(|report| with_exited || report.alive);
    reports.sort_by_key(|report| (!report.alive, report.pid));
    console.print(&text(&reports), &reports.iter().map(to_json).collect::<Vec<_>>().into())?;
    Ok(if reports.is_empty() { Exit::Negative } else { Exit::Success })
}

fn live_endpoints(report: &Report) -> usize {
    report.blocks.iter().filter(|block| block.live).count()
}

fn text(reports: &[Report]) -> String {
    if reports.is_empty() {
        return "no running process of this user uses Farcall (--all also lists processes that have exited)"
            .to_owned();
    }
    let mut text = "     pid  endpoints  command".to_owned();
    for report in reports {
        let state = if report.alive { "" } else { " (exited)" };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{:>8}  {:>9}  {}{state}", report.pid, live_endpoints(report), report.command);
    }
    text
}

fn to_json(report: &Report) -> Value {
    json!({
        "pid": report.pid, "alive": report.alive, "command": report.command, "endpoints": live_endpoints(report),
    })
}
