//! What to measure and how: plain data, handed to the process at the other end.

use super::operation::Operation;
use farcall_link::Transport;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How an operation is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RnicTest {
    /// There and back: the target answers with the same operation. Half of a round trip is the latency one way.
    PingPong,
    /// One at a time, until the initiator's completion.
    Completion,
    /// As many as possible, several outstanding.
    Throughput,
}

/// Which messages are copied while posting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inlining {
    /// Those up to 256 bytes, or up to what the device allows if that is less.
    #[default]
    Auto,
    /// Those up to so many bytes; 0 is none.
    UpTo(u32),
}

/// Everything about a measurement but what is done and how long the messages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuning {
    /// Requests outstanding on each queue pair (throughput).
    pub window: u32,
    /// Requests posted with one doorbell (throughput).
    pub chain: u32,
    /// Every so many requests one is signalled.
    pub signal_every: u32,
    /// Which messages are inlined.
    pub inlining: Inlining,
    /// Whether both ends sleep on completion events, instead of polling.
    pub sleeps: bool,
    /// Connected queue pairs, all with one completion queue at each end.
    pub qps: u32,
    /// How many of them carry messages, in turn; the others are only there.
    pub active_qps: u32,
    /// Whether all queue pairs of an end share one receive queue, instead of each having its own.
    pub shares_receives: bool,
    /// Whether WRITEs are found by their last byte also where devices do not promise to place it last: most RNICs do
    /// what few promise.
    pub assumes_order: bool,
}

impl Tuning {
    /// One message at a time over one connection. Inlined ones are seldom signalled, others always.
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

    /// Small messages: long chains, one completion a chain.
    pub const RATE: Self = Self { window: 256, chain: 32, signal_every: 32, ..Self::LATENCY };

    /// Large messages: a few outstanding.
    pub const BANDWIDTH: Self = Self { window: 4, chain: 1, signal_every: 1, ..Self::LATENCY };

    /// The same with so many requests outstanding on each queue pair, one of each half of them signalled.
    #[must_use]
    pub fn with_window(self, window: u32) -> Self {
        Self { window, signal_every: (window / 2).max(1), ..self }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RnicTask {
    /// What the initiator does.
    pub operation: Operation,
    /// Over which transport.
    pub transport: Transport,
    /// How it is measured.
    pub test: RnicTest,
    /// Bytes of each message.
    pub len_bytes: usize,
    /// How.
    pub tuning: Tuning,
}

impl RnicTask {
    /// The latency of an operation as it is best found: a ping-pong, unless it brings data back by itself or, being
    /// found by nothing but its last byte, cannot be slept for.
    #[must_use]
    pub fn latency(operation: Operation, transport: Transport, len_bytes: usize, tuning: Tuning) -> Self {
        let is_unseen = operation == Operation::Write && tuning.sleeps;
        let test =
            if operation.returns_data() || is_unseen { RnicTest::Completion } else { RnicTest::PingPong };
        Self { operation, transport, test, len_bytes, tuning }
    }

    /// Whether single operations are timed.
    #[must_use]
    pub fn is_latency(&self) -> bool {
        self.test != RnicTest::Throughput
    }

    /// Whether messages may get lost without a trace.
    #[must_use]
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
