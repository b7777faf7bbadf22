//! `farcall stats PID --watch`: prints the changes per second.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use farcall::stats::{Histogram, Report};
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Clears a terminal and moves to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints the changes every `period`, until the process exits or the user interrupts.
pub(super) fn run(
    console: Console,
    period: Duration,
    read: impl Fn() -> Result<Report, Failure>,
) -> Result<Exit, Failure> {
    let mut before = read()?;
    let mut read_at = Instant::now();
    while before.alive {
        std::thread::sleep(period);
        let after = read()?;
        let seconds = read_at.elapsed().as_secs_f64();
        read_at = Instant::now();
        let rates = rates(&before, &after, seconds);
        let at = now();
        let mut text = format!("{at} process {} ({}), per second:", after.pid, after.command);
        for (label, name, rate) in &rates {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {:<34} {rate:>14.1}", format!("{label}: {name}"));
        }
        if rates.is_empty() {
            text.push_str(" no changes");
        }
        let clear = if !console.is_json() && std::io::stdout().is_terminal() { CLEAR } else { "" };
        let rates: Vec<_> = rates
            .iter()
            .map(|(label, name, rate)| json!({ "label": label, "counter": name, "per_second": rate }))
            .collect();
        let json =
            json!({ "at": at, "pid": after.pid, "alive": after.alive, "seconds": seconds, "rates": rates });
        console.print_line(&format!("{clear}{text}"), &json)?;
        before = after;
    }
    let at = now();
    let text = format!("{at} the process has exited");
    console.print_line(&text, &json!({ "at": at, "pid": before.pid, "alive": false }))?;
    Ok(Exit::Success)
}

/// Returns the time in the format of logs, to allow a comparison with them.
fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Returns the changes of live endpoints per second: label, counter, rate. Buckets of histograms are too many to read,
/// and omitted.
fn rates<'a>(before: &Report, after: &'a Report, seconds: f64) -> Vec<(&'a str, &'a str, f64)> {
    let earlier: HashMap<(&str, &str), u64> = before
        .blocks
        .iter()
        .flat_map(|block| block.counters.iter().map(|(name, value)| ((&*block.label, &**name), *value)))
        .collect();
    let live = after.blocks.iter().filter(|block| block.live && Histogram::of(&block.counters).is_none());
    live.flat_map(|block| block.counters.iter().map(|(name, value)| (&*block.label, &**name, *value)))
        .filter_map(|(label, name, value)| {
            let earlier = earlier.get(&(label, name)).copied().unwrap_or(0);
            (value != earlier).then(|| (label, name, (value as f64 - earlier as f64) / seconds))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::stats::BlockReport;

    fn report(counters: &[(&str, u64)]) -> Report {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let block = BlockReport { label: "x".into(), live: true, counters, records: Vec::new() };
        Report { pid: 1, alive: true, command: String::new(), blocks: vec![block] }
    }

    #[test]
    fn computes_changes_per_second_including_decreases() {
        let (before, after) = (
            report(&[("calls", 10), ("items", 9), ("reads", 4)]),
            report(&[("calls", 30), ("items", 7), ("reads", 4)]),
        );
        assert_eq!(rates(&before, &after, 2.0), [("x", "calls", 10.0), ("x", "items", -1.0)]);
    }
}
