//! `farcall memory scrub`: clients verify all their replicas.

use super::node_requests::{Nodes, request, status_of};
use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use farcall::memory::wire::{HolderReport, Redundancy, Request};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Interval between two queries of a node's state.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);

/// Verify all replicas of the pages on these nodes, and repair damaged ones.
///
/// Clients verify their pages, because they have the checksums. They do so continuously at a low rate; this command
/// requests it at once, and waits until it is complete. A client reads all of its pages, including those on its other
/// nodes. It begins when it renews its lease, within a third of the lease term. Repairs are also in the log of the
/// client.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall memory scrub --nodes 127.0.0.1:11500\n  \
                        farcall memory scrub --nodes etcd://10.0.0.9:2379/files --json")]
pub struct Scrub {
    #[command(flatten)]
    nodes: Nodes,
    /// Timeout in seconds. Clients continue after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    timeout: u64,
}

impl Scrub {
    /// Requests the scrub from the clients of all nodes, and waits for them.
    ///
    /// # Errors
    /// When a node cannot be reached, or clients do not complete it in time.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let selected = self.nodes.open()?;
        let nodes = self.nodes.nodes.find(None)?;
        for node in &nodes {
            request(&selected, *node, &Request::Scrub)?;
        }
        let (until, bar) = (Instant::now() + Duration::from_secs(self.timeout), spinner());
        let (mut lines, mut values) = (Vec::new(), Vec::new());
        for node in &nodes {
            let status = loop {
                let status = status_of(&selected, *node)?;
                let mut left = status.reports.iter().filter(|report| is_awaited(report)).peekable();
                let Some(HolderReport { redundancy: Some(first), .. }) = left.peek() else { break status };
                bar.set_message(format!("{node}: {} pages read", first.scrubbed));
                let count = left.count();
                if stop.is_raised() {
                    return Ok(Exit::Interrupted);
                }
                if Instant::now() > until {
                    return Err(Failure::new("clients do not complete the scrub")
                        .at(node)
                        .why(format!("{count} have not after {} s", self.timeout))
                        .remedy("they continue: see farcall memory status, or raise --timeout"));
                }
                std::thread::sleep(QUERY_INTERVAL);
            };
            for (holder, report) in status.holders.iter().zip(&status.reports) {
                lines.push(format!("{node}  {}: {}", holder.name.escape_debug(), text(report)));
                values.push(json!({ "node": node.to_string(), "client": holder.name,
                    "is_scrubbed": report.redundancy.is_some(),
                    "pages": report.redundancy.map(|client| client.scrubbed),
                    "repaired": report.redundancy.map(|client| client.repaired),
                    "lost": report.redundancy.map(|client| client.lost) }));
            }
        }
        bar.finish_and_clear();
        if lines.is_empty() {
            lines.push("no client stores pages on these nodes".to_owned());
        }
        console.print(&lines.join("\n"), &Value::Array(values))?;
        Ok(Exit::Success)
    }
}

/// Returns whether a client is still to complete a scrub that it knows, or will know.
fn is_awaited(report: &HolderReport) -> bool {
    report.redundancy.is_some_and(|client| client.scrubs < report.scrubs)
}

fn text(report: &HolderReport) -> String {
    match report.redundancy {
        None => "not scrubbed: its client sends no reports; update it".to_owned(),
        Some(Redundancy { scrubbed, repaired, degraded, lost, .. }) => format!(
            "{scrubbed} pages read from all replicas, {repaired} repaired since it began; \
             slabs with too few replicas: {degraded}, without any: {lost}"
        ),
    }
}
