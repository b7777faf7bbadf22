//! `farcall explain PID`.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::stats::{BlockReport, Report, StatsError, Why, read_pid};
use serde_json::{Value, json};
use std::fmt;

/// Say of each connection of a process which way it goes, and why: TCP under farcall run, and Farcall's own streams.
///
/// What it tells lies in shared memory, so asking disturbs nobody, and it is there after the process died. Only its own
/// user can read it. Exits with 3 if there is nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall explain 4711\n  farcall explain 4711 --json | jq '.connections[].why'"
)]
pub struct Explain {
    /// The process.
    pid: u32,
}

/// One connection.
struct Connection {
    /// "tcp LOCAL PEER accepted" or "connected"; of a stream, "stream ..."
    label: String,
    is_open: bool,
    counters: Vec<(String, u64)>,
}

/// The connections of a process.
pub struct Explained {
    pid: u32,
    is_alive: bool,
    command: String,
    connections: Vec<Connection>,
}

/// Reads what a process told.
///
/// # Errors
/// When there is nothing, or it cannot be read.
pub fn read(pid: u32) -> Result<Explained, Failure> {
    let report = read_pid(pid).map_err(|error| match &error {
        StatsError::NotFound { .. } => nothing(pid),
        _ => Failure::because("cannot read what the process told", &error).at(format!("process {pid}")),
    })?;
    let Report { alive, command, blocks, .. } = report;
    let connections: Vec<Connection> = blocks.into_iter().filter_map(Connection::of).collect();
    if connections.is_empty() {
        return Err(nothing(pid));
    }
    Ok(Explained { pid, is_alive: alive, command, connections })
}

fn nothing(pid: u32) -> Failure {
    Failure::new("no connections to explain")
        .at(format!("process {pid}"))
        .why(
            "it is not under farcall run, or had no TCP connection within this host; and it opened no stream",
        )
        .remedy("start it with farcall run -- CMD; of its other endpoints tells: farcall stats PID")
        .exit(Exit::Negative)
}

impl Connection {
    fn of(block: BlockReport) -> Option<Self> {
        let is_named = ["tcp ", "stream "].iter().any(|kind| block.label.starts_with(kind));
        let is_one = is_named && block.counters.first().is_some_and(|(name, _)| name == "why");
        is_one.then_some(Self { label: block.label, is_open: block.live, counters: block.counters })
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| *value)
    }

    fn why(&self) -> &'static str {
        Why::words(self.counter("why")).unwrap_or("for a reason that another version of farcall knows")
    }

    fn way(&self) -> &'static str {
        match self.counter("why") {
            why if why == Why::Met as u64 => "shared memory",
            why if why == Why::DeviceReaches as u64 => "one-sided WRITEs",
            _ => "TCP",
        }
    }

    fn to_json(&self) -> Value {
        let mut words = self.label.split(' ');
        json!({
            "kind": words.next(), "local": words.next(), "peer": words.next(), "role": words.next(),
            "open": self.is_open, "way": self.way(), "why": self.why(), "ring_bytes": self.counter("ring_bytes"),
            "sent_bytes": self.counter("sent_bytes"), "received_bytes": self.counter("received_bytes"),
            "sleeps": self.counter("sleeps"),
        })
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_alive { "alive" } else { "dead" };
        write!(f, "process {} ({}), {state}", self.pid, self.command)?;
        for connection in &self.connections {
            let ended = if connection.is_open { "" } else { " (closed)" };
            write!(f, "\n{}{ended}: {}: {}", connection.label, connection.way(), connection.why())?;
            let [ring, sent, received, sleeps] =
                ["ring_bytes", "sent_bytes", "received_bytes", "sleeps"].map(|name| connection.counter(name));
            if ring + sent + received > 0 {
                let ring = if ring > 0 { format!("ring of {ring} bytes; ") } else { String::new() };
                write!(f, "\n  {ring}{sent} bytes sent, {received} received; slept {sleeps} times")?;
            }
        }
        Ok(())
    }
}

impl Explain {
    /// Reads and prints.
    ///
    /// # Errors
    /// As [`read`].
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let explained = read(self.pid)?;
        let connections: Vec<Value> = explained.connections.iter().map(Connection::to_json).collect();
        let json = json!({
            "pid": explained.pid, "alive": explained.is_alive, "command": explained.command,
            "connections": connections,
        });
        console.say(&explained, &json)?;
        Ok(Exit::Success)
    }
}
