//! Statistics of a stream, shown by `farcall explain`, if a TCP connection opened it.

use farcall_stats::{Block, Connection, PathReason};

use crate::stream::{Stream, StreamPath};
use crate::tcp_path::Addresses;

/// Statistics block of a stream. It is updated when the stream finds no work, at most once per millisecond of waiting.
pub(crate) struct StreamStats(Block<Connection>);

impl StreamStats {
    /// Creates the statistics of an open stream. `role` is `connected` or `accepted`.
    pub fn new((own, peer): Addresses, role: &str, path: StreamPath) -> Self {
        let block = Block::<Connection>::new(&format!("stream {own} {peer} {role}"), 0);
        block.why.set(match path {
            StreamPath::Verbs => PathReason::DeviceReaches,
            StreamPath::Tcp => PathReason::NothingReaches,
        } as u64);
        Self(block)
    }

    pub fn update(&self, stream: &Stream) {
        let (sent_bytes, received_bytes) = stream.totals();
        self.0.sent_bytes.set(sent_bytes);
        self.0.received_bytes.set(received_bytes);
        self.0.ring_bytes.set(stream.ring_bytes() as u64);
    }

    /// Records that the stream is about to sleep.
    pub fn sleeps(&self, stream: &Stream) {
        self.update(stream);
        self.0.sleeps.increment();
    }
}
