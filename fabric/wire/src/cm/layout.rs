//! Offsets of the fields of each message: the tables of volume 1, section 12.6. Offsets are in bytes from the end of
//! the MAD's header. Fields that are not named here are zero, and receivers ignore them.

use crate::cm::fields::Body;
use crate::cm::ip_route::HEADER_BYTES;
use crate::cm::mad::{Mad, Malformed};
use crate::cm::message::{
    ConnectionParams, Ece, IpRoute, Message, QueuePair, RejectedMessage, Rejection, Reply, Request,
    ServiceReply, ServiceRequest,
};
use crate::cm::private_data::{
    REJ_BYTES_MAX, REP_BYTES_MAX, REQ_BYTES_MAX, SIDR_REP_BYTES_MAX, SIDR_REQ_BYTES_MAX,
};

/// Message types (section 12.6.1).
pub(super) mod attribute {
    pub(in crate::cm) const REQ: u16 = 0x10;
    pub(in crate::cm) const MRA: u16 = 0x11;
    pub(in crate::cm) const REJ: u16 = 0x12;
    pub(in crate::cm) const REP: u16 = 0x13;
    pub(in crate::cm) const RTU: u16 = 0x14;
    pub(in crate::cm) const DREQ: u16 = 0x15;
    pub(in crate::cm) const DREP: u16 = 0x16;
    pub(in crate::cm) const SIDR_REQ: u16 = 0x17;
    pub(in crate::cm) const SIDR_REP: u16 = 0x18;
}

/// Partition of which all members of a network are members.
const DEFAULT_PARTITION: u16 = 0xffff;
/// Response timeout of a connection manager, 4.096 µs × 2 to this power: 4.3 s, as in Linux.
const RESPONSE_TIMEOUT: u8 = 20;
/// Maximum number of retransmissions of a message, as in Linux.
const CM_RETRIES: u8 = 15;
/// Hop limit of packets.
const HOP_LIMIT: u8 = 64;

const REQ_DATA_AT: usize = 140;
const REP_DATA_AT: usize = 36;
const REJ_DATA_AT: usize = 84;
const SIDR_REQ_DATA_AT: usize = 16;
const SIDR_REP_DATA_AT: usize = 96;

/// Returns the attribute ID, the attribute modifier and the body of a message whose fields are in range.
pub(super) fn encode(mad: &Mad) -> (u16, u32, Body) {
    let mut body = Body([0; _]);
    let (kind, modifier) = match &mad.message {
        Message::Req(request) => (put_request(&mut body, request), request.ece.options),
        Message::Rep(reply) => (put_reply(&mut body, reply), reply.ece.options),
        Message::Rtu => (attribute::RTU, 0),
        Message::Rej(rejection) => {
            body.put_bits(8, 6, 2, rejection.rejected as u8);
            body.put(10, &rejection.reason.to_be_bytes());
            body.put(REJ_DATA_AT, &rejection.private_data);
            (attribute::REJ, 0)
        }
        Message::Dreq { remote_qp_num } => {
            body.put_u24(8, *remote_qp_num);
            (attribute::DREQ, 0)
        }
        Message::Drep => (attribute::DREP, 0),
        Message::Mra { received, service_timeout } => {
            body.put_bits(8, 6, 2, *received as u8);
            body.put_bits(9, 3, 5, *service_timeout);
            (attribute::MRA, 0)
        }
        Message::SidrReq(request) => {
            body.put(4, &DEFAULT_PARTITION.to_be_bytes());
            body.put_u64(8, request.route.service_id());
            request.route.put(&mut body, SIDR_REQ_DATA_AT);
            body.put(SIDR_REQ_DATA_AT + HEADER_BYTES, &request.private_data);
            (attribute::SIDR_REQ, 0)
        }
        Message::SidrRep(reply) => (put_service_reply(&mut body, reply), 0),
    };
    match kind {
        attribute::REQ | attribute::SIDR_REQ => body.put_u32(0, mad.local_comm_id),
        attribute::SIDR_REP => body.put_u32(0, mad.remote_comm_id),
        _ => {
            body.put_u32(0, mad.local_comm_id);
            body.put_u32(4, mad.remote_comm_id);
        }
    }
    (kind, modifier, body)
}

/// Parses the message with an attribute ID. Its fields may be out of range.
pub(super) fn decode(kind: u16, modifier: u32, body: &Body) -> Result<Message, Malformed> {
    Ok(match kind {
        attribute::REQ => Message::Req(request(body, modifier)?),
        attribute::REP => Message::Rep(reply(body, modifier)),
        attribute::RTU => Message::Rtu,
        attribute::REJ => Message::Rej(Rejection {
            rejected: rejected_message(body)?,
            reason: body.u16(10),
            private_data: body.bytes::<REJ_BYTES_MAX>(REJ_DATA_AT).to_vec(),
        }),
        attribute::DREQ => Message::Dreq { remote_qp_num: body.u24(8) },
        attribute::DREP => Message::Drep,
        attribute::MRA => {
            Message::Mra { received: rejected_message(body)?, service_timeout: body.bits(9, 3, 5) }
        }
        attribute::SIDR_REQ => Message::SidrReq(ServiceRequest {
            route: IpRoute::get(body.u64(8), body, SIDR_REQ_DATA_AT)?,
            private_data: body.bytes::<SIDR_REQ_BYTES_MAX>(SIDR_REQ_DATA_AT + HEADER_BYTES).to_vec(),
        }),
        attribute::SIDR_REP => Message::SidrRep(ServiceReply {
            status: body.0[4],
            qp_num: body.u24(8),
            service_id: body.u64(12),
            qkey: body.u32(20),
            private_data: body.bytes::<SIDR_REP_BYTES_MAX>(SIDR_REP_DATA_AT).to_vec(),
        }),
        unknown => return Err(Malformed::Kind(unknown)),
    })
}

fn rejected_message(body: &Body) -> Result<RejectedMessage, Malformed> {
    match body.bits(8, 6, 2) {
        0 => Ok(RejectedMessage::Req),
        1 => Ok(RejectedMessage::Rep),
        2 => Ok(RejectedMessage::Other),
        _ => Err(Malformed::OutOfRange("the message that is answered")),
    }
}

/// Table 99 of release 1.3.
fn put_request(body: &mut Body, request: &Request) -> u16 {
    let Request { route, qp, params, .. } = request;
    body.put_u24(5, request.ece.vendor_id);
    body.put_u64(8, route.service_id());
    body.put_u64(16, request.ca_guid);
    body.put_u24(32, qp.qp_num);
    body.put(35, &[params.responder_resources]);
    body.put(39, &[params.initiator_depth]);
    body.put_bits(43, 3, 5, RESPONSE_TIMEOUT);
    let (service_type, extended_type) = transport_of(request.qp_type);
    body.put_bits(43, 1, 2, service_type);
    body.put_bits(43, 0, 1, params.flow_control.into());
    body.put_u24(44, qp.psn);
    body.put_bits(47, 3, 5, RESPONSE_TIMEOUT);
    body.put_bits(47, 0, 3, request.retry_count);
    body.put(48, &DEFAULT_PARTITION.to_be_bytes());
    body.put_bits(50, 4, 4, request.mtu);
    body.put_bits(50, 0, 3, params.rnr_retry_count);
    body.put_bits(51, 4, 4, CM_RETRIES);
    body.put_bits(51, 3, 1, params.srq.into());
    body.put_bits(51, 0, 3, extended_type);
    body.put(56, &request.gid);
    body.put(72, &request.peer_gid);
    body.put(93, &[HOP_LIMIT]);
    body.put_bits(95, 3, 5, request.ack_timeout);
    route.put(body, REQ_DATA_AT);
    body.put(REQ_DATA_AT + HEADER_BYTES, &request.private_data);
    attribute::REQ
}

fn request(body: &Body, modifier: u32) -> Result<Request, Malformed> {
    Ok(Request {
        route: IpRoute::get(body.u64(8), body, REQ_DATA_AT)?,
        qp: QueuePair { qp_num: body.u24(32), psn: body.u24(44) },
        ca_guid: body.u64(16),
        gid: body.bytes(56),
        peer_gid: body.bytes(72),
        qp_type: qp_type_of(body.bits(43, 1, 2), body.bits(51, 0, 3))?,
        mtu: body.bits(50, 4, 4),
        retry_count: body.bits(47, 0, 3),
        ack_timeout: body.bits(95, 3, 5),
        params: ConnectionParams {
            responder_resources: body.0[35],
            initiator_depth: body.0[39],
            flow_control: body.bits(43, 0, 1) != 0,
            rnr_retry_count: body.bits(50, 0, 3),
            srq: body.bits(51, 3, 1) != 0,
        },
        ece: Ece { vendor_id: body.u24(5), options: modifier },
        private_data: body.bytes::<REQ_BYTES_MAX>(REQ_DATA_AT + HEADER_BYTES).to_vec(),
    })
}

/// `IBV_QPT_RC`, `IBV_QPT_UC`, `IBV_QPT_XRC_SEND`: transport service type, extended transport type.
const TRANSPORTS: [(u8, (u8, u8)); 3] = [(2, (0, 0)), (3, (1, 0)), (9, (3, 1))];

/// Other queue pair types have no number and are encoded as RC, as in Linux.
fn transport_of(qp_type: u8) -> (u8, u8) {
    TRANSPORTS.into_iter().find(|(known, _)| *known == qp_type).map_or((0, 0), |(_, transport)| transport)
}

fn qp_type_of(service_type: u8, extended_type: u8) -> Result<u8, Malformed> {
    let extended_type = if service_type == 3 { extended_type } else { 0 };
    TRANSPORTS
        .into_iter()
        .find(|(_, transport)| *transport == (service_type, extended_type))
        .map(|(qp_type, _)| qp_type)
        .ok_or(Malformed::OutOfRange("the transport"))
}

/// Table 103 of release 1.3. The vendor's ID is in the spare bytes after three numbers of 24 bits.
fn put_reply(body: &mut Body, reply: &Reply) -> u16 {
    let params = &reply.params;
    let [_, high, middle, low] = reply.ece.vendor_id.to_be_bytes();
    body.put_u24(12, reply.qp.qp_num);
    body.put(15, &[high]);
    body.put(19, &[middle]);
    body.put_u24(20, reply.qp.psn);
    body.put(23, &[low]);
    body.put(24, &[params.responder_resources, params.initiator_depth]);
    body.put_bits(26, 0, 1, params.flow_control.into());
    body.put_bits(27, 5, 3, params.rnr_retry_count);
    body.put_bits(27, 4, 1, params.srq.into());
    body.put_u64(28, reply.ca_guid);
    body.put(REP_DATA_AT, &reply.private_data);
    attribute::REP
}

fn reply(body: &Body, modifier: u32) -> Reply {
    let vendor_id = u32::from_be_bytes([0, body.0[15], body.0[19], body.0[23]]);
    Reply {
        qp: QueuePair { qp_num: body.u24(12), psn: body.u24(20) },
        ca_guid: body.u64(28),
        params: ConnectionParams {
            responder_resources: body.0[24],
            initiator_depth: body.0[25],
            flow_control: body.bits(26, 0, 1) != 0,
            rnr_retry_count: body.bits(27, 5, 3),
            srq: body.bits(27, 4, 1) != 0,
        },
        ece: Ece { vendor_id, options: modifier },
        private_data: body.bytes::<REP_BYTES_MAX>(REP_DATA_AT).to_vec(),
    }
}

fn put_service_reply(body: &mut Body, reply: &ServiceReply) -> u16 {
    body.put(4, &[reply.status]);
    body.put_u24(8, reply.qp_num);
    body.put_u64(12, reply.service_id);
    body.put_u32(20, reply.qkey);
    body.put(SIDR_REP_DATA_AT, &reply.private_data);
    attribute::SIDR_REP
}
