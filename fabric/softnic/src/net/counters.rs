//! Counters of the port and of each queue pair with a peer on another host, for `farcall stats` and `farcall explain`.

use farcall_stats::Block;
use farcall_verbs::{Mtu, QpAttr, QpType};

use super::path::Path;
use crate::host::flight::FLIGHT_RECORDS;

farcall_stats::counters! {
    /// Counters of the RoCEv2 port; written under the port's lock.
    pub(crate) struct PortCounters {
        /// Packets sent.
        packets_sent,
        /// Packets sent behind others in one message.
        sent_in_trains,
        /// Acknowledgements that waited for what their owner posted next.
        acknowledgements_kept,
        /// Packets that could not be sent: as if they were lost on the way.
        packets_not_sent,
        /// Packets taken in.
        packets_received,
        /// Datagrams that came behind others in one message.
        received_in_trains,
        /// Datagrams for another process that came behind those of a known peer in one message: for a while each comes
        /// for itself then.
        trains_for_several,
        /// Datagrams whose CRC is wrong.
        dropped_crc,
        /// Datagrams that are no packet.
        dropped_malformed,
        /// Packets for a queue pair that is not here.
        dropped_unknown,
        /// Packets from another address or UDP port than the queue pair's peer has, or to another address than ours.
        dropped_foreign,
        /// Packets from an address of this host: of a process that is not known to be of this user, or where RoCEv2 is
        /// not forced to this host.
        dropped_local,
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

farcall_stats::counters! {
    /// Counters of a queue pair with a peer on another host; written under the port's lock. The fields that change with
    /// each packet come first, on one cache line.
    pub(crate) struct PairCounters {
        /// Packets sent for it, and taken in.
        packets_sent,
        packets_received,
        /// Packets to it from, or to, another address than those of its label, or from another UDP port than its peer's;
        /// they were dropped.
        dropped_foreign,
        /// Of packets taken in, those with the mark of congestion; notifications of it, sent and taken in.
        packets_marked,
        cnps_sent,
        cnps_received,
        /// Times that no acknowledgement came in time.
        ack_timeouts,
        /// Times that packets were sent again.
        resent,
        /// Times that the peer had no receive.
        not_ready,
        /// Requests that came before one that was missing.
        out_of_sequence,
        /// Its transport, as `ibv_qp_type` numbers them, its state, as `ibv_qp_state` does, the number of the queue
        /// pair that it goes to, and how many bytes of payload a packet has at most.
        transport,
        state,
        peer_qp_num,
        path_mtu_bytes,
    }
}

impl PairCounters {
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
