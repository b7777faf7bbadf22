//! Queue pairs of the software RNIC as text.

use farcall::stats::{BlockReport, QpTransport};
use farcall::verbs::QpState;
use serde_json::{Map, Value, json};
use std::fmt;

/// Transport of a queue pair.
enum TransportInfo {
    None,
    SharedMemory,
    Roce {
        source: String,
        destination: String,
    },
    /// A datagram queue pair: each address handle has its own transport.
    PerAddressHandle,
}

/// One queue pair.
pub(super) struct QueuePair {
    block: BlockReport,
    number: String,
    path: TransportInfo,
}

/// Counters of each transport, and their names in the text.
const OF_SHARED_MEMORY: [(&str, &str); 5] = [
    ("writes", "WRITEs"),
    ("reads", "READs"),
    ("messages_sent", "messages sent"),
    ("messages_received", "received"),
    ("waits", "waits"),
];
const OF_ROCE: [(&str, &str); 8] = [
    ("packets_sent", "packets sent"),
    ("packets_received", "received"),
    ("resent", "retransmissions"),
    ("ack_timeouts", "times without acknowledgement"),
    ("not_ready", "times the peer had no receive"),
    ("packets_marked", "packets marked by congestion"),
    ("cnps_sent", "CNPs sent"),
    ("cnps_received", "CNPs received"),
];
const OF_DATAGRAMS: [(&str, &str); 2] = [("sent", "datagrams sent"), ("received", "received")];

impl QueuePair {
    /// Creates a queue pair from its block. A RoCEv2 queue pair has a second block with more counters; the first one
    /// is ignored.
    pub(super) fn of(block: &BlockReport) -> Option<Self> {
        let words: Vec<&str> = block.label.split(' ').collect();
        let (number, path) = match words[..] {
            ["softnic", "qp", number] => match QpTransport::of(super::counter(block, "way"))? {
                QpTransport::None => (number, TransportInfo::None),
                QpTransport::SharedMemory => (number, TransportInfo::SharedMemory),
                QpTransport::RoceV2 => return None,
            },
            ["softnic", "ud", "qp", number] => (number, TransportInfo::PerAddressHandle),
            ["softnic", "roce", "qp", number, source, destination] => (
                number,
                TransportInfo::Roce { source: source.to_owned(), destination: destination.to_owned() },
            ),
            _ => return None,
        };
        let number = number.to_owned();
        Some(Self { block: block.clone(), number, path })
    }

    fn counter(&self, name: &str) -> u64 {
        super::counter(&self.block, name)
    }

    fn transport(&self) -> &'static str {
        match (&self.path, self.counter("transport")) {
            (TransportInfo::PerAddressHandle, _) => "UD",
            (_, 2) => "RC",
            (_, 3) => "UC",
            _ => "of another version",
        }
    }

    fn state(&self) -> String {
        let state = u32::try_from(self.counter("state")).ok().and_then(QpState::from_raw);
        state.map_or_else(|| "in a state of another version".to_owned(), |state| state.to_string())
    }

    fn way(&self) -> &'static str {
        match self.path {
            TransportInfo::None => "not connected",
            TransportInfo::SharedMemory => "shared memory",
            TransportInfo::Roce { .. } => "RoCEv2",
            TransportInfo::PerAddressHandle => "by address handle",
        }
    }

    fn counters(&self) -> &'static [(&'static str, &'static str)] {
        match self.path {
            TransportInfo::None => &[],
            TransportInfo::SharedMemory => &OF_SHARED_MEMORY,
            TransportInfo::Roce { .. } => &OF_ROCE,
            TransportInfo::PerAddressHandle => &OF_DATAGRAMS,
        }
    }

    /// Returns the number of the connected queue pair, if there is one.
    fn peer(&self) -> Option<String> {
        let has_one = matches!(self.path, TransportInfo::SharedMemory | TransportInfo::Roce { .. });
        has_one.then(|| format!("{:#08x}", self.counter("peer_qp_num")))
    }

    pub(super) fn to_json(&self) -> Value {
        let (source, destination) = match &self.path {
            TransportInfo::Roce { source, destination } => (Some(source), Some(destination)),
            _ => (None, None),
        };
        let mtu = source.map(|_| self.counter("path_mtu_bytes"));
        let counters: Map<String, Value> =
            self.counters().iter().map(|(name, _)| ((*name).to_owned(), self.counter(name).into())).collect();
        json!({
            "qp_num": self.number, "transport": self.transport(), "open": self.block.live, "state": self.state(),
            "way": self.way(), "peer_qp_num": self.peer(), "source": source, "destination": destination,
            "path_mtu_bytes": mtu, "counters": counters,
        })
    }
}

impl fmt::Display for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.block.live { "" } else { " (closed)" };
        let (number, transport, state, way) = (&self.number, self.transport(), self.state(), self.way());
        write!(f, "qp {number} ({transport}, {state}){ended}: {way}")?;
        if let TransportInfo::Roce { source, destination } = &self.path {
            write!(f, " from {source} to {destination}")?;
        }
        if let Some(peer) = self.peer() {
            write!(f, ", qp {peer}")?;
        }
        if let TransportInfo::Roce { .. } = self.path {
            write!(f, ", path MTU {}", self.counter("path_mtu_bytes"))?;
        }
        let counted: Vec<String> = self
            .counters()
            .iter()
            .map(|(name, words)| (self.counter(name), words))
            .filter(|(count, _)| *count > 0)
            .map(|(count, words)| format!("{count} {words}"))
            .collect();
        if counted.is_empty() { Ok(()) } else { write!(f, "\n  {}", counted.join(", ")) }
    }
}
