//! `farcall explain PID`.

mod connection;
mod queue_pair;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use connection::Connection;
use farcall::stats::{BlockReport, Report, StatsError, read_pid};
use queue_pair::QueuePair;
use serde_json::{Value, json};
use std::fmt;

/// Show the transport of each connection and queue pair of a process.
///
/// For TCP connections under farcall run, and for streams of Farcall, the reason is shown as well; for queue pairs of the
/// software RNIC on RoCEv2, the addresses. The report is in shared memory: reading it does not disturb the process, and
/// it remains readable after the process has exited, for the user of the process only. Exits with 3 if there are no
/// connections.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall explain 4711\n  farcall explain 4711 --json | jq '.connections[].why'\n  \
                  farcall explain 4711 --json | jq '.queue_pairs[] | select(.way == \"RoCEv2\")'"
)]
pub struct Explain {
    /// Process ID.
    pid: u32,
}

/// The connections and queue pairs of a process.
pub struct Explained {
    pid: u32,
    is_alive: bool,
    command: String,
    /// File whose code can make system calls directly, for which connections stay on TCP.
    direct_calls: Option<String>,
    connections: Vec<Connection>,
    queue_pairs: Vec<QueuePair>,
}

/// Prefix of the label of the block that names code with direct system calls.
const DIRECT_CALLS: &str = "direct calls in ";

/// Reads the report of a process.
///
/// # Errors
/// If there is none, or it cannot be read.
pub fn read(pid: u32) -> Result<Explained, Failure> {
    let report = read_pid(pid).map_err(|error| match &error {
        StatsError::NotFound { .. } => no_connections(pid),
        _ => Failure::because("cannot read the report of the process", &error).at(format!("process {pid}")),
    })?;
    let Report { alive, command, blocks, .. } = report;
    let connections: Vec<Connection> = blocks.iter().filter_map(Connection::of).collect();
    let queue_pairs: Vec<QueuePair> = blocks.iter().filter_map(QueuePair::of).collect();
    if connections.is_empty() && queue_pairs.is_empty() {
        return Err(no_connections(pid));
    }
    let direct_calls =
        blocks.iter().find_map(|block| block.label.strip_prefix(DIRECT_CALLS)).map(str::to_owned);
    Ok(Explained { pid, is_alive: alive, command, direct_calls, connections, queue_pairs })
}

fn no_connections(pid: u32) -> Failure {
    Failure::new("no connections to explain")
        .at(format!("process {pid}"))
        .why(
            "it is not under farcall run, or had no TCP connection within this host, and it opened no stream and no \
             queue pair of the software RNIC",
        )
        .remedy("start it with farcall run -- CMD; for its other endpoints: farcall stats PID")
        .exit(Exit::Negative)
}

/// Returns a counter of a block; 0 if the block has none of that name.
fn counter(block: &BlockReport, name: &str) -> u64 {
    block.counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| *value)
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_alive { "running" } else { "exited" };
        write!(f, "process {} ({}), {state}", self.pid, self.command)?;
        if let Some(code) = &self.direct_calls {
            write!(
                f,
                "\nconnections stay on TCP: {code} can make system calls itself; if it makes none on TCP connections: \
                 farcall run --allow-direct-calls"
            )?;
        }
        for connection in &self.connections {
            write!(f, "\n{connection}")?;
        }
        for pair in &self.queue_pairs {
            write!(f, "\n{pair}")?;
        }
        Ok(())
    }
}

impl Explain {
    /// Reads and prints the report.
    ///
    /// # Errors
    /// Like [`read`].
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let explained = read(self.pid)?;
        let connections: Vec<Value> = explained.connections.iter().map(Connection::to_json).collect();
        let queue_pairs: Vec<Value> = explained.queue_pairs.iter().map(QueuePair::to_json).collect();
        let json = json!({
            "pid": explained.pid, "alive": explained.is_alive, "command": explained.command,
            "direct_calls": explained.direct_calls, "connections": connections, "queue_pairs": queue_pairs,
        });
        console.print(&explained, &json)?;
        Ok(Exit::Success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_code_with_direct_calls_once() {
        let mut explained = Explained {
            pid: 4711,
            is_alive: true,
            command: "server".to_owned(),
            direct_calls: Some("/usr/lib/liburing.so.2".to_owned()),
            connections: vec![],
            queue_pairs: vec![],
        };
        assert_eq!(explained.to_string().matches("liburing.so.2 can make system calls itself").count(), 1);
        explained.direct_calls = None;
        assert!(!explained.to_string().contains("--allow-direct-calls"));
    }
}
