//! What a queue pair counts and records, for `farcall stats`.

use farcall_verbs::WrOpcode;

farcall_stats::counters! {
    /// Counters of a queue pair. Those of sends are written by whoever is inside the send side, those of receives by the
    /// poller of the receive completion queue.
    pub(crate) struct QpCounters {
        /// WRITEs executed.
        writes,
        /// READs executed.
        reads,
        /// Atomics executed.
        atomics,
        /// SENDs and WRITEs with immediate published.
        messages_sent,
        /// Payload bytes of all of them.
        bytes_initiated,
        /// Times that requests had to wait for a receive, for ring space or for the peer.
        waits,
        /// Times that an owner who sleeps had the peer asked to wake it.
        wakes_wanted,
        /// Requests over an unreliable transport that the target could not take.
        dropped,
        /// Requests that failed or were flushed.
        send_errors,
        /// Receives filled.
        messages_received,
        /// Their payload bytes.
        bytes_received,
        /// Receives that failed or were flushed.
        receive_errors,
    }
}

impl QpCounters {
    /// Counts an executed request.
    #[inline]
    pub(super) fn executed(&self, opcode: WrOpcode, len_bytes: u64) {
        let counter = match opcode {
            WrOpcode::WRITE => &self.writes,
            WrOpcode::READ => &self.reads,
            WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => &self.atomics,
            _ => &self.messages_sent,
        };
        counter.increment();
        self.bytes_initiated.add(len_bytes);
    }
}

/// Events of the flight recorder; the argument is given in parentheses.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Event {
    /// The state changed (new state).
    State = 1,
    /// A request began to wait, and none had lately (0: for a receive or ring space, 1: for the peer, 2: for the target).
    Wait = 2,
    /// A send request failed (completion status).
    SendFailed = 3,
    /// A receive failed (completion status).
    ReceiveFailed = 4,
    /// The peer was reached (its queue pair number).
    Connected = 5,
    /// A request over an unreliable transport was dropped (opcode).
    Dropped = 6,
}

/// Events kept for each queue pair.
pub(super) const FLIGHT_RECORDS: usize = 32;
