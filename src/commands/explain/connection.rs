//! Connections of sockets and streams as text.

use farcall::stats::{BlockReport, PathReason};
use serde_json::{Value, json};
use std::fmt;

/// One connection.
pub(super) struct Connection(BlockReport);

impl Connection {
    /// Creates a connection from a block whose label is "tcp LOCAL PEER accepted" or "connected", or "stream ..." for
    /// a stream.
    pub(super) fn of(block: &BlockReport) -> Option<Self> {
        let is_named = ["tcp ", "stream "].iter().any(|kind| block.label.starts_with(kind));
        let is_one = is_named && block.counters.first().is_some_and(|(name, _)| name == "why");
        is_one.then(|| Self(block.clone()))
    }

    fn counter(&self, name: &str) -> u64 {
        super::counter(&self.0, name)
    }

    fn why(&self) -> &'static str {
        PathReason::words(self.counter("why")).unwrap_or("for a reason of another version of farcall")
    }

    fn transport(&self) -> &'static str {
        match self.counter("why") {
            why if why == PathReason::Paired as u64 => "shared memory",
            why if why == PathReason::DeviceReaches as u64 => "one-sided WRITEs",
            _ => "TCP",
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut words = self.0.label.split(' ');
        json!({
            "kind": words.next(), "local": words.next(), "peer": words.next(), "role": words.next(),
            "open": self.0.live, "way": self.transport(), "why": self.why(), "ring_bytes": self.counter("ring_bytes"),
            "sent_bytes": self.counter("sent_bytes"), "received_bytes": self.counter("received_bytes"),
            "sleeps": self.counter("sleeps"), "tcp_sent_bytes": self.counter("tcp_sent_bytes"),
            "tcp_received_bytes": self.counter("tcp_received_bytes"),
        })
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.0.live { "" } else { " (closed)" };
        write!(f, "{}{ended}: {}: {}", self.0.label, self.transport(), self.why())?;
        let [ring, sent, received, sleeps] =
            ["ring_bytes", "sent_bytes", "received_bytes", "sleeps"].map(|name| self.counter(name));
        // A ring without traffic gives no information about the bytes of the connection.
        if sent + received > 0 {
            let ring = if ring > 0 { format!("ring of {ring} bytes; ") } else { String::new() };
            write!(f, "\n  {ring}{sent} bytes sent, {received} received; slept {sleeps} times")?;
        }
        let [sent, received] = ["tcp_sent_bytes", "tcp_received_bytes"].map(|name| self.counter(name));
        if sent + received > 0 {
            write!(f, "\n  over TCP: {sent} bytes sent, {received} received")?;
        }
        Ok(())
    }
}
