//! Contents of the messages (volume 1, section 12.6). [`Mad`](crate::cm::Mad) adds the identifiers and the encoding.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use crate::cm::private_data::{
    REJ_BYTES_MAX, REP_BYTES_MAX, REQ_BYTES_MAX, SIDR_REP_BYTES_MAX, SIDR_REQ_BYTES_MAX,
};

/// Port spaces (`enum rdma_port_space`). Equal port numbers of two spaces are different ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Multicast over IP.
    IpOverIb = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any transport.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the port space with a number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        [Self::IpOverIb, Self::Tcp, Self::Udp, Self::Ib].into_iter().find(|space| *space as u32 == number)
    }
}

/// The queue pair of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePair {
    /// Queue pair number, 24 bits.
    pub qp_num: u32,
    /// First packet sequence number that it expects; the other end's first packet has it (IBA 12.7.31). 24 bits.
    pub psn: u32,
}

/// Parameters that one end offers to, and requests of, the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionParams {
    /// Maximum number of concurrent READs and atomics that the sender of the message accepts.
    pub responder_resources: u8,
    /// Maximum number of concurrent READs and atomics that it issues.
    pub initiator_depth: u8,
    /// Whether it supports end-to-end flow control.
    pub flow_control: bool,
    /// RNR retries of its peer; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Whether its queue pair uses a shared receive queue.
    pub srq: bool,
}

/// Enhanced connection establishment: a vendor's options (`struct ibv_ece`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Vendor ID, 24 bits.
    pub vendor_id: u32,
    /// Options of the vendor.
    pub options: u32,
}

/// Source and destination of a REQ or SIDR REQ as IP addresses (annex A11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpRoute {
    /// Port space of both ports.
    pub port_space: PortSpace,
    /// The requester's address. The scope of an IPv6 address is local to its host and is not transmitted.
    pub from: SocketAddr,
    /// The listener's address.
    pub to: SocketAddr,
}

/// A REQ: requests a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Source and destination.
    pub route: IpRoute,
    /// The requester's queue pair.
    pub qp: QueuePair,
    /// GUID of the requester's channel adapter.
    pub ca_guid: u64,
    /// GID of the requester's port.
    pub gid: [u8; 16],
    /// GID of the listener's port.
    pub peer_gid: [u8; 16],
    /// Transport, a number of `enum ibv_qp_type`: RC, UC, or the sending end of XRC.
    pub qp_type: u8,
    /// Path MTU, a number of `enum ibv_mtu`.
    pub mtu: u8,
    /// Transport retries of both ends.
    pub retry_count: u8,
    /// The ACK timeout of both ends: 4.096 µs × 2 to this power.
    pub ack_timeout: u8,
    /// Parameters that the sender offers and requests.
    pub params: ConnectionParams,
    /// A vendor's options.
    pub ece: Ece,
    /// The program's bytes, at most [`REQ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A REP: accepts a REQ. The GID of the listener's port is the destination of the REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The listener's queue pair.
    pub qp: QueuePair,
    /// GUID of the listener's channel adapter.
    pub ca_guid: u64,
    /// Parameters that the sender offers and requests.
    pub params: ConnectionParams,
    /// A vendor's options.
    pub ece: Ece,
    /// The program's bytes, at most [`REP_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// Message to which a REJ or an MRA refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectedMessage {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// Another message; in a REJ also none, if the wait for one has timed out.
    Other = 2,
}

/// A REJ: rejects a REQ or a REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The rejected message.
    pub rejected: RejectedMessage,
    /// Reason of [`crate::cm::reason`].
    pub reason: u16,
    /// The program's bytes, at most [`REJ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A SIDR REQ: requests the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Source and destination.
    pub route: IpRoute,
    /// The program's bytes, at most [`SIDR_REQ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A SIDR REP. The GID of the listener's port is the destination of the SIDR REQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReply {
    /// Status of [`crate::cm::reason`].
    pub status: u8,
    /// The number of the queue pair, 24 bits.
    pub qp_num: u32,
    /// Service ID.
    pub service_id: u64,
    /// Q_Key of its datagrams.
    pub qkey: u32,
    /// The program's bytes, at most [`SIDR_REP_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Requests a connection.
    Req(Request),
    /// Accepts a connection.
    Rep(Reply),
    /// The requester is ready to use the connection.
    Rtu,
    /// Rejects a REQ or a REP.
    Rej(Rejection),
    /// Requests the end of a connection.
    Dreq {
        /// Queue pair of the receiver of this message, 24 bits.
        remote_qp_num: u32,
    },
    /// Confirms the end of a connection.
    Drep,
    /// Announces that the reply to a message will take longer.
    Mra {
        /// The received message.
        received: RejectedMessage,
        /// Additional time: 4.096 µs × 2 to this power.
        service_timeout: u8,
    },
    /// Requests the queue pair of a datagram service.
    SidrReq(ServiceRequest),
    /// Returns the queue pair, or the reason why there is none.
    SidrRep(ServiceReply),
}

impl Message {
    /// Clamps the values that exceed their field, and returns the name of one such field.
    pub(super) fn clamp(&mut self) -> Option<&'static str> {
        let mut clamp = FieldOutOfRange(None);
        match self {
            Self::Req(request) => {
                clamp.queue_pair(&mut request.qp);
                clamp.number("the RNR retry count", &mut request.params.rnr_retry_count, 0..=7);
                // 256 to 4096 bytes.
                clamp.number("the MTU", &mut request.mtu, 1..=5);
                clamp.number("the retry count", &mut request.retry_count, 0..=7);
                clamp.number("the ACK timeout", &mut request.ack_timeout, IN_5_BITS);
                clamp.number("the vendor ID", &mut request.ece.vendor_id, IN_24_BITS);
                clamp.bytes(&mut request.private_data, REQ_BYTES_MAX);
            }
            Self::Rep(reply) => {
                clamp.queue_pair(&mut reply.qp);
                clamp.number("the RNR retry count", &mut reply.params.rnr_retry_count, 0..=7);
                clamp.number("the vendor ID", &mut reply.ece.vendor_id, IN_24_BITS);
                clamp.bytes(&mut reply.private_data, REP_BYTES_MAX);
            }
            Self::Rej(rejection) => clamp.bytes(&mut rejection.private_data, REJ_BYTES_MAX),
            Self::Dreq { remote_qp_num } => {
                clamp.number("the queue pair number", remote_qp_num, IN_24_BITS);
            }
            Self::Mra { service_timeout, .. } => {
                clamp.number("the service timeout", service_timeout, IN_5_BITS);
            }
            Self::SidrReq(request) => clamp.bytes(&mut request.private_data, SIDR_REQ_BYTES_MAX),
            Self::SidrRep(reply) => {
                clamp.number("the queue pair number", &mut reply.qp_num, IN_24_BITS);
                clamp.bytes(&mut reply.private_data, SIDR_REP_BYTES_MAX);
            }
            Self::Rtu | Self::Drep => {}
        }
        clamp.0
    }
}

const IN_24_BITS: RangeInclusive<u32> = 0..=0x00ff_ffff;
const IN_5_BITS: RangeInclusive<u8> = 0..=31;

/// Name of a field that was out of range, if there was one.
struct FieldOutOfRange(Option<&'static str>);

impl FieldOutOfRange {
    fn number<T: Ord + Copy>(&mut self, name: &'static str, number: &mut T, range: RangeInclusive<T>) {
        if !range.contains(number) {
            *number = (*number).clamp(*range.start(), *range.end());
            self.0 = Some(name);
        }
    }

    fn bytes(&mut self, bytes: &mut Vec<u8>, len_max: usize) {
        if bytes.len() > len_max {
            bytes.truncate(len_max);
            self.0 = Some("private data");
        }
    }

    fn queue_pair(&mut self, qp: &mut QueuePair) {
        self.number("the queue pair number", &mut qp.qp_num, IN_24_BITS);
        self.number("the packet sequence number", &mut qp.psn, IN_24_BITS);
    }
}
