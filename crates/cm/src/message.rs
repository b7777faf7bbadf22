//! What travels.
//!
//! Eight bytes of header: "FCCM", the writer's version, the oldest version that understands the message, its kind, zero.
//! Later versions append fields; a reader takes what it knows and leaves the rest.

use std::net::SocketAddr;

use crate::private_data::{
    REJ_BYTES_MAX, REP_BYTES_MAX, REQ_BYTES_MAX, SIDR_REP_BYTES_MAX, SIDR_REQ_BYTES_MAX,
};
use crate::reader::{Reader, push_address, push_private_data};

const MAGIC: [u8; 4] = *b"FCCM";
/// What this build writes.
const VERSION: u8 = 1;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("the message ends too early")]
    Short,
    /// They are somebody else's.
    #[error("the bytes are not of a Farcall connection manager")]
    Foreign,
    /// A later build wrote them, in a way that this one does not understand.
    #[error(
        "the message needs version {0} of the connection manager, this is version {VERSION}; use one build at both ends"
    )]
    TooNew(u8),
    /// There is no such message.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// A field has a value that it cannot have.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

/// Port spaces (`enum rdma_port_space`): the same number in two of them is two ports.
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
    /// The space of a number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        [Self::IpOverIb, Self::Tcp, Self::Udp, Self::Ib].into_iter().find(|space| *space as u32 == number)
    }
}

/// One end's queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePair {
    /// Its number, 24 bits.
    pub qp_num: u32,
    /// The number of the first packet that it sends, 24 bits.
    pub psn: u32,
    /// Its port's address.
    pub gid: [u8; 16],
}

/// What one end offers or asks of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// READs and atomics that the sender of the message accepts at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have under way at a time.
    pub initiator_depth: u8,
    /// Whether it does end-to-end flow control.
    pub flow_control: bool,
    /// How often its peer repeats what finds no receive; 7: without end.
    pub rnr_retry_count: u8,
    /// Whether its queue pair takes receives from a shared queue.
    pub srq: bool,
}

/// Enhanced connection establishment: a vendor's options (`struct ibv_ece`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Whose options.
    pub vendor_id: u32,
    /// Which.
    pub options: u32,
}

/// A REQ: a connection, please.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The ports' space.
    pub port_space: PortSpace,
    /// Who asks.
    pub from: SocketAddr,
    /// Who is asked.
    pub to: SocketAddr,
    /// The asker's queue pair.
    pub qp: QueuePair,
    /// Its transport, a number of `enum ibv_qp_type`.
    pub qp_type: u8,
    /// The largest packet of the path, a number of `enum ibv_mtu`.
    pub mtu: u8,
    /// How often both ends repeat what is not acknowledged.
    pub retry_count: u8,
    /// How long they wait for that: 4.096 µs × 2 to this power.
    pub ack_timeout: u8,
    /// What is offered and asked.
    pub terms: Terms,
    /// A vendor's options.
    pub ece: Ece,
    /// The program's bytes, at most [`REQ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A REP: here is the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The answerer's queue pair.
    pub qp: QueuePair,
    /// What is offered and asked.
    pub terms: Terms,
    /// A vendor's options.
    pub ece: Ece,
    /// The program's bytes, at most [`REP_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A REJ: no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why: of [`crate::reason`].
    pub reason: u16,
    /// The program's bytes, at most [`REJ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A SIDR REQ: which queue pair serves datagrams there?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// The ports' space.
    pub port_space: PortSpace,
    /// Who asks.
    pub from: SocketAddr,
    /// Who is asked.
    pub to: SocketAddr,
    /// The program's bytes, at most [`SIDR_REQ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A SIDR REP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReply {
    /// 0, or why not: of [`crate::reason`].
    pub status: u8,
    /// The number of the queue pair, 24 bits.
    pub qp_num: u32,
    /// Its key for datagrams.
    pub qkey: u32,
    /// Its port's address.
    pub gid: [u8; 16],
    /// The program's bytes, at most [`SIDR_REP_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A connection, please.
    Req(Request),
    /// Here is the other end.
    Rep(Reply),
    /// Ready to use.
    Rtu,
    /// No.
    Rej(Rejection),
    /// An end to the connection, please.
    Dreq,
    /// It has ended.
    Drep,
    /// Which queue pair serves datagrams there?
    SidrReq(ServiceRequest),
    /// This one, or none.
    SidrRep(ServiceReply),
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Req(_) => 1,
            Self::Rep(_) => 2,
            Self::Rtu => 3,
            Self::Rej(_) => 4,
            Self::Dreq => 5,
            Self::Drep => 6,
            Self::SidrReq(_) => 7,
            Self::SidrRep(_) => 8,
        }
    }

    /// The message as bytes, at most [`crate::MESSAGE_BYTES_MAX`]; private data that is too long is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        // Version 1 is understood by all that are.
        bytes.extend([VERSION, 1, self.kind(), 0]);
        match self {
            Self::Req(request) => request.encode(&mut bytes),
            Self::Rep(reply) => reply.encode(&mut bytes),
            Self::Rej(rejection) => {
                bytes.extend(rejection.reason.to_le_bytes());
                push_private_data(&mut bytes, &rejection.private_data, REJ_BYTES_MAX);
            }
            Self::SidrReq(request) => request.encode(&mut bytes),
            Self::SidrRep(reply) => reply.encode(&mut bytes),
            Self::Rtu | Self::Dreq | Self::Drep => {}
        }
        bytes
    }

    /// The message that bytes are.
    ///
    /// # Errors
    /// When they are none, or one of a later version that this one does not understand.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(Malformed::Foreign);
        }
        let (_version, oldest, kind, _) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
        if oldest > VERSION {
            return Err(Malformed::TooNew(oldest));
        }
        Ok(match kind {
            1 => Self::Req(Request::decode(&mut reader)?),
            2 => Self::Rep(Reply::decode(&mut reader)?),
            3 => Self::Rtu,
            4 => Self::Rej(Rejection {
                reason: reader.u16()?,
                private_data: reader.private_data(REJ_BYTES_MAX)?,
            }),
            5 => Self::Dreq,
            6 => Self::Drep,
            7 => Self::SidrReq(ServiceRequest::decode(&mut reader)?),
            8 => Self::SidrRep(ServiceReply::decode(&mut reader)?),
            other => return Err(Malformed::Kind(other)),
        })
    }
}

fn port_space(reader: &mut Reader<'_>) -> Result<PortSpace, Malformed> {
    PortSpace::of(reader.u16()?.into()).ok_or(Malformed::OutOfRange("a port space"))
}

impl QueuePair {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend((self.qp_num & 0xff_ffff).to_le_bytes());
        bytes.extend((self.psn & 0xff_ffff).to_le_bytes());
        bytes.extend(self.gid);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { qp_num: reader.u24()?, psn: reader.u24()?, gid: reader.gid()? })
    }
}

impl Terms {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend([
            self.responder_resources,
            self.initiator_depth,
            self.flow_control.into(),
            self.rnr_retry_count.min(7),
            self.srq.into(),
        ]);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let terms = Self {
            responder_resources: reader.u8()?,
            initiator_depth: reader.u8()?,
            flow_control: reader.bool()?,
            rnr_retry_count: reader.u8()?,
            srq: reader.bool()?,
        };
        if terms.rnr_retry_count > 7 { Err(Malformed::OutOfRange("the RNR retry count")) } else { Ok(terms) }
    }
}

impl Ece {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.vendor_id.to_le_bytes());
        bytes.extend(self.options.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { vendor_id: reader.u32()?, options: reader.u32()? })
    }
}

impl Request {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend((self.port_space as u16).to_le_bytes());
        push_address(bytes, &self.from);
        push_address(bytes, &self.to);
        self.qp.encode(bytes);
        bytes.extend([self.qp_type, self.mtu, self.retry_count.min(7), self.ack_timeout.min(31)]);
        self.terms.encode(bytes);
        self.ece.encode(bytes);
        push_private_data(bytes, &self.private_data, REQ_BYTES_MAX);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let request = Self {
            port_space: port_space(reader)?,
            from: reader.address()?,
            to: reader.address()?,
            qp: QueuePair::decode(reader)?,
            qp_type: reader.u8()?,
            mtu: reader.u8()?,
            retry_count: reader.u8()?,
            ack_timeout: reader.u8()?,
            terms: Terms::decode(reader)?,
            ece: Ece::decode(reader)?,
            private_data: reader.private_data(REQ_BYTES_MAX)?,
        };
        // 256 to 4096 bytes.
        if !(1..=5).contains(&request.mtu) {
            return Err(Malformed::OutOfRange("the MTU"));
        }
        if request.retry_count > 7 || request.ack_timeout > 31 {
            return Err(Malformed::OutOfRange("the retries"));
        }
        Ok(request)
    }
}

impl Reply {
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.qp.encode(bytes);
        self.terms.encode(bytes);
        self.ece.encode(bytes);
        push_private_data(bytes, &self.private_data, REP_BYTES_MAX);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            qp: QueuePair::decode(reader)?,
            terms: Terms::decode(reader)?,
            ece: Ece::decode(reader)?,
            private_data: reader.private_data(REP_BYTES_MAX)?,
        })
    }
}

impl ServiceRequest {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend((self.port_space as u16).to_le_bytes());
        push_address(bytes, &self.from);
        push_address(bytes, &self.to);
        push_private_data(bytes, &self.private_data, SIDR_REQ_BYTES_MAX);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            port_space: port_space(reader)?,
            from: reader.address()?,
            to: reader.address()?,
            private_data: reader.private_data(SIDR_REQ_BYTES_MAX)?,
        })
    }
}

impl ServiceReply {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.status);
        bytes.extend((self.qp_num & 0xff_ffff).to_le_bytes());
        bytes.extend(self.qkey.to_le_bytes());
        bytes.extend(self.gid);
        push_private_data(bytes, &self.private_data, SIDR_REP_BYTES_MAX);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            status: reader.u8()?,
            qp_num: reader.u24()?,
            qkey: reader.u32()?,
            gid: reader.gid()?,
            private_data: reader.private_data(SIDR_REP_BYTES_MAX)?,
        })
    }
}

#[cfg(test)]
mod tests;
