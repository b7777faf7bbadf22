//! Description of a measurement: plain data, sent to the process at the other end.

use super::operation::Operation;
use farcall_link::Transport;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Measurement method of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RnicTest {
    /// Round trips: the target responds with the same operation. Half of a round trip is the latency in one direction.
    PingPong,
    /// One request at a time, until the initiator's completion.
    Completion,
    /// Maximum rate, with several requests outstanding.
    Throughput,
}

/// Messages that are copied into the work request when it is posted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inlining {
    /// Those up to 256 bytes, or up to what the device allows if that is less.
    #[default]
    Auto,
    /// Messages up to this number of bytes; 0 inlines none.
    UpTo(u32),
}

/// Parameters of a measurement other than operation, transport, method and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuning {
    /// Requests outstanding on each queue pair (throughput).
    pub window: u32,
    /// Requests posted with one doorbell (throughput).
    pub chain: u32,
    /// Number of requests of which one is signalled.
    pub signal_every: u32,
    /// Which messages are inlined.
    pub inlining: Inlining,
    /// `true` if both ends sleep on completion events instead of polling.
    pub sleeps: bool,
    /// Connected queue pairs, all with one completion queue at each end.
    pub qps: u32,
    /// Number of queue pairs that carry messages, in turn; the others exist but are idle.
    pub active_qps: u32,
    /// `true` if all queue pairs of an end share one receive queue, instead of each having its own.
    pub shares_receives: bool,
    /// `true` if WRITEs are detected by their last byte even on devices that do not guarantee to place it last. Most
    /// RNICs do so, but few guarantee it.
    pub assumes_order: bool,
}

impl Tuning {
    /// One message at a time over one connection. Inlined messages are rarely signalled, others always.
    pub const LATENCY: Self = Self {
        window: 1,
        chain: 1,
        signal_every: 64,
        inlining: Inlining::Auto,
        sleeps: false,
        qps: 1,
        active_qps: 1,
        shares_receives: false,
        assumes_order: false,
    };

    /// Small messages: long chains, one completion per chain.
    pub const RATE: Self = Self { window: 256, chain: 32, signal_every: 32, ..Self::LATENCY };

    /// Large messages: a few outstanding.
    pub const BANDWIDTH: Self = Self { window: 4, chain: 1, signal_every: 1, ..Self::LATENCY };

    /// Returns this with up to `window` outstanding requests on each queue pair, of which one in each half of the
    /// window is signalled.
    #[must_use]
    pub fn with_window(self, window: u32) -> Self {
        Self { window, signal_every: (window / 2).max(1), ..self }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RnicTask {
    /// Operation of the initiator.
    pub operation: Operation,
    /// Transport of the queue pairs.
    pub transport: Transport,
    /// Measurement method.
    pub test: RnicTest,
    /// Length of each message in bytes.
    pub len_bytes: usize,
    /// Further parameters.
    pub tuning: Tuning,
}

impl RnicTask {
    /// Returns the latency task of an operation with the most suitable method. That is a ping-pong, unless the
    /// operation returns data by itself, or the target could detect it only by its last byte and therefore could not
    /// sleep.
    pub fn latency(operation: Operation, transport: Transport, len_bytes: usize, tuning: Tuning) -> Self {
        let is_unseen = operation == Operation::Write && tuning.sleeps;
        let test =
            if operation.returns_data() || is_unseen { RnicTest::Completion } else { RnicTest::PingPong };
        Self { operation, transport, test, len_bytes, tuning }
    }

    /// Returns whether single operations are timed.
    pub fn is_latency(&self) -> bool {
        self.test != RnicTest::Throughput
    }

    /// Returns whether messages can be lost without an error.
    pub fn is_unreliable(&self) -> bool {
        self.transport != Transport::Rc
    }
}

impl fmt::Display for RnicTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.operation)?;
        match self.test {
            RnicTest::PingPong => f.write_str(" ping-pong")?,
            RnicTest::Completion => f.write_str(" until completion")?,
            RnicTest::Throughput if self.tuning.chain > 1 => {
                write!(f, " in chains of {}", self.tuning.chain)?
            }
            RnicTest::Throughput => write!(f, ", {} outstanding", self.tuning.window)?,
        }
        if self.tuning.qps > 1 {
            write!(f, ", {} QPs", self.tuning.qps)?;
        }
        if self.tuning.active_qps < self.tuning.qps {
            write!(f, " ({} active)", self.tuning.active_qps)?;
        }
        Ok(())
    }
}
