//! Counters of the port and of each queue pair with a peer on another host, for `farcall stats` and `farcall explain`.

use farcall_stats::Block;
use farcall_verbs::{Mtu, QpAttr, QpType};

use super::path::Path;
use crate::shm_transport::flight::FLIGHT_RECORDS;

farcall_stats::counters! {
    /// Counters of the RoCEv2 port; written under the port's lock.
    pub(crate) struct PortCounters {
        /// Packets sent.
        packets_sent,
        /// Packets sent after others in one message to the kernel.
        sent_in_trains,
        /// Acknowledgements delayed until the application thread posted its next request.
        acknowledgements_kept,
        /// Packets that the kernel refused to send; they count as lost.
        packets_not_sent,
        /// Packets received.
        packets_received,
        /// Datagrams received after others in one message from the kernel.
        received_in_trains,
        /// Datagrams for another process that arrived in one message after those of a known peer: for a while each
        /// datagram then arrives in its own message.
        trains_for_several,
        /// Datagrams dropped because their ICRC is wrong.
        dropped_crc,
        /// Datagrams dropped because they are no RoCEv2 packet.
        dropped_malformed,
        /// Packets dropped because this process has no such queue pair.
        dropped_unknown,
        /// Packets dropped because their address or UDP port is not that of the queue pair's peer, or their
        /// destination is not this host's.
        dropped_foreign,
        /// Packets dropped because they come from an address of this host, or by IPv6 over the loopback device, and from
        /// a process that is not known to be this user's, or where RoCEv2 is not forced for this host.
        dropped_local,
        /// Datagrams dropped because their queue pair receives none, has another Q_Key, or has too many unpolled ones.
        dropped_unwanted,
        /// Queue pairs that send from the UDP port of others, because the process had 64 or could open no more.
        pairs_on_shared_ports,
        /// Connection requests of other hosts that were refused because one host, or all together, had too many.
        connections_refused,
        /// Acknowledgement time-outs.
        ack_timeouts,
        /// Retransmissions.
        resent,
        /// RNR NAKs: the peer had no receive.
        not_ready,
        /// Requests that arrived before one that was missing.
        out_of_sequence,
        /// Packets received with the mark of congestion (ECN CE).
        packets_marked,
        /// Congestion notifications sent: at most one in 50 us to the peer of each queue pair that receives marked
        /// packets.
        cnps_sent,
        /// Congestion notifications received: the queue pair sends slower for a while.
        cnps_received,
        /// Packets that FARCALL_WIRE_FAULTS dropped, duplicated, delayed, corrupted or marked.
        faults,
    }
}

farcall_stats::counters! {
    /// Counters of a queue pair with a peer on another host; written under the port's lock. The fields that change with
    /// each packet come first, on one cache line.
    pub(crate) struct RoceQpCounters {
        /// Packets sent, and received.
        packets_sent,
        packets_received,
        /// Packets dropped because an address is not that of its label, or the UDP port is not its peer's.
        dropped_foreign,
        /// Packets received with the mark of congestion; congestion notifications sent, and received.
        packets_marked,
        cnps_sent,
        cnps_received,
        /// Acknowledgement time-outs.
        ack_timeouts,
        /// Retransmissions.
        resent,
        /// RNR NAKs: the peer had no receive.
        not_ready,
        /// Requests that arrived before one that was missing.
        out_of_sequence,
        /// Transport (numbered as in `ibv_qp_type`), state (as in `ibv_qp_state`), number of the peer queue pair,
        /// maximum payload of a packet in bytes, and UDP source port.
        transport,
        state,
        peer_qp_num,
        path_mtu_bytes,
        source_port,
    }
}

impl RoceQpCounters {
    /// Creates the counters of a new queue pair in the process's statistics.
    pub(super) fn of(qpn: u32, transport: QpType, path: Path, rtr: &QpAttr) -> Block<Self> {
        let label = format!("softnic roce qp {qpn:#08x} {path}");
        let counters = Block::<Self>::new(&label, FLIGHT_RECORDS);
        counters.transport.set(transport as u64);
        counters.peer_qp_num.set(rtr.dest_qp_num.unwrap_or_default().into());
        counters.path_mtu_bytes.set(rtr.path_mtu.map_or(0, Mtu::bytes).into());
        counters
    }
}
