//! Counters and flight recorder of a queue pair, for `farcall stats`.

use farcall_verbs::WrOpcode;

farcall_stats::counters! {
    /// Counters of a queue pair. The holder of the send side writes those of sends, the polling thread of the receive
    /// completion queue those of receives, and the service thread `peer_became_ready`.
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
        /// Times that an application thread that sleeps requested a wake-up from the peer.
        wakes_wanted,
        /// Requests to the target's service thread to match a message with its shared receives, which no thread polled.
        matches_asked,
        /// Times that the peer announced that it is ready to receive.
        peer_became_ready,
        /// Requests over an unreliable transport that the target could not receive.
        dropped,
        /// Requests that failed or were flushed.
        send_errors,
        /// Receives filled.
        messages_received,
        /// Payload bytes of the filled receives.
        bytes_received,
        /// Receives that failed or were flushed.
        receive_errors,
        /// Transport (numbered as in `ibv_qp_type`), state (as in `ibv_qp_state`), and number of the peer queue pair.
        transport,
        state,
        peer_qp_num,
        /// Path of its messages: a [`farcall_stats::QpTransport`].
        way,
    }
}

impl QpCounters {
    /// Counts an executed request.
    #[inline]
    pub(crate) fn executed(&self, opcode: WrOpcode, len_bytes: u64) {
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
