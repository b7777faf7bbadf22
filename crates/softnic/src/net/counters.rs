//! What the port counts, for `farcall stats`.

farcall_stats::counters! {
    /// Counters of the RoCEv2 port; written under its lock.
    pub(crate) struct PortCounters {
        /// Packets sent.
        packets_sent,
        /// Packets sent behind others in one message.
        sent_in_trains,
        /// Packets that could not be sent: as if they were lost on the way.
        packets_not_sent,
        /// Packets taken in.
        packets_received,
        /// Datagrams that came behind others in one message.
        received_in_trains,
        /// Datagrams whose CRC is wrong.
        dropped_crc,
        /// Datagrams that are no packet.
        dropped_malformed,
        /// Packets for a queue pair that is not here.
        dropped_unknown,
        /// Packets from or to another address than the queue pair's.
        dropped_foreign,
        /// Datagrams for a queue pair that takes none, with this Q_Key not, or has too many that nobody polled.
        dropped_unwanted,
        /// Connections that other hosts asked for, and that one host, or all, may not have.
        connections_refused,
        /// Times that no acknowledgement came in time.
        ack_timeouts,
        /// Times that packets were sent again.
        resent,
        /// Times that the peer had no receive.
        not_ready,
        /// Requests that came before one that was missing.
        out_of_sequence,
        /// Packets that came with the mark of congestion (ECN's CE).
        packets_marked,
        /// Congestion notifications sent: once in 50 us to the peer of a queue pair to which marked packets come.
        cnps_sent,
        /// Congestion notifications that came: the queue pair sends slower for a while.
        cnps_received,
        /// Packets that FARCALL_WIRE_FAULTS has lost, doubled, held up, corrupted or marked.
        faults,
    }
}
