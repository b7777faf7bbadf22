//! The messages and their encoding.
//!
//! Eight bytes of header: "FCCM", the writer's version, the oldest version that understands the message, two zeros. The
//! message follows in `postcard`'s format. Later versions append fields; a reader ignores fields that it does not know.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cm::private_data::{
    REJ_BYTES_MAX, REP_BYTES_MAX, REQ_BYTES_MAX, SIDR_REP_BYTES_MAX, SIDR_REQ_BYTES_MAX,
};

const MAGIC: [u8; 4] = *b"FCCM";
/// The version that this build writes, and the oldest that it understands.
const VERSION: u8 = 2;
/// [`Message`] has so many kinds.
const KINDS: u32 = 8;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("the message ends too early")]
    Short,
    /// They do not begin with the magic number.
    #[error("the bytes are not of a Farcall connection manager")]
    Foreign,
    /// Another build wrote them, in a way that this one does not understand.
    #[error(
        "the message needs version {0} of the connection manager, this is version {VERSION}; use one build at both ends"
    )]
    Version(u8),
    /// The kind of message is unknown.
    #[error("there is no message of kind {0}")]
    Kind(u32),
    /// A field has a value that it cannot have.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

/// Port spaces (`enum rdma_port_space`): the same number in two of them is two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePair {
    /// Its number, 24 bits.
    pub qp_num: u32,
    /// The number of the first packet that it sends, 24 bits.
    pub psn: u32,
    /// Its port's address.
    pub gid: [u8; 16],
}

/// What one end offers to, and requests of, the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// READs and atomics that the sender of the message accepts at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have under way at a time.
    pub initiator_depth: u8,
    /// Whether it does end-to-end flow control.
    pub flow_control: bool,
    /// RNR retries of its peer; 7: unlimited.
    pub rnr_retry_count: u8,
    /// Whether its queue pair takes receives from a shared queue.
    pub srq: bool,
}

/// Enhanced connection establishment: a vendor's options (`struct ibv_ece`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ece {
    /// Whose options.
    pub vendor_id: u32,
    /// Which.
    pub options: u32,
}

/// A REQ: requests a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The ports' space.
    pub port_space: PortSpace,
    /// The requester's address.
    #[serde(with = "address")]
    pub from: SocketAddr,
    /// The listener's address.
    #[serde(with = "address")]
    pub to: SocketAddr,
    /// The requester's queue pair.
    pub qp: QueuePair,
    /// Its transport, a number of `enum ibv_qp_type`.
    pub qp_type: u8,
    /// The largest packet of the path, a number of `enum ibv_mtu`.
    pub mtu: u8,
    /// Transport retries of both ends.
    pub retry_count: u8,
    /// The ACK timeout of both ends: 4.096 µs × 2 to this power.
    pub ack_timeout: u8,
    /// What the sender offers and requests.
    pub terms: Terms,
    /// A vendor's options.
    pub ece: Ece,
    /// The program's bytes, at most [`REQ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A REP: accepts a REQ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The listener's queue pair.
    pub qp: QueuePair,
    /// What the sender offers and requests.
    pub terms: Terms,
    /// A vendor's options.
    pub ece: Ece,
    /// The program's bytes, at most [`REP_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A REJ: rejects a REQ or a REP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The reason, of [`crate::cm::reason`].
    pub reason: u16,
    /// The program's bytes, at most [`REJ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A SIDR REQ: asks for the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRequest {
    /// The ports' space.
    pub port_space: PortSpace,
    /// The requester's address.
    #[serde(with = "address")]
    pub from: SocketAddr,
    /// The listener's address.
    #[serde(with = "address")]
    pub to: SocketAddr,
    /// The program's bytes, at most [`SIDR_REQ_BYTES_MAX`].
    pub private_data: Vec<u8>,
}

/// A SIDR REP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReply {
    /// The status, of [`crate::cm::reason`].
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Requests a connection.
    Req(Request),
    /// Accepts it.
    Rep(Reply),
    /// The requester is ready to use the connection.
    Rtu,
    /// Rejects a REQ or a REP.
    Rej(Rejection),
    /// Requests the end of the connection.
    Dreq,
    /// Confirms the end.
    Drep,
    /// Asks for the queue pair of a datagram service.
    SidrReq(ServiceRequest),
    /// Names it, or says why there is none.
    SidrRep(ServiceReply),
}

impl Message {
    /// The message as bytes, at most [`crate::cm::MESSAGE_BYTES_MAX`]; what is too large for its field is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut message = self.clone();
        message.cut();
        let header = [&MAGIC[..], &[VERSION, VERSION, 0, 0]].concat();
        postcard::to_extend(&message, header).expect("a vector has room, and every field has a form")
    }

    /// The message that bytes are.
    ///
    /// # Errors
    /// When they are none, or one of a version that this one does not understand.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, body) = bytes.split_first_chunk::<8>().ok_or(Malformed::Short)?;
        let [magic @ .., version, oldest, _, _] = header;
        if *magic != MAGIC {
            return Err(Malformed::Foreign);
        }
        if *version < VERSION || *oldest > VERSION {
            return Err(Malformed::Version((*version).min(*oldest)));
        }
        let (kind, _) = postcard::take_from_bytes::<u32>(body).map_err(malformed)?;
        if kind >= KINDS {
            return Err(Malformed::Kind(kind));
        }
        let (mut message, _) = postcard::take_from_bytes::<Self>(body).map_err(malformed)?;
        match message.cut() {
            Some(field) => Err(Malformed::OutOfRange(field)),
            None => Ok(message),
        }
    }

    /// Cuts what is too large for its field, and names one such field.
    fn cut(&mut self) -> Option<&'static str> {
        let mut cut = Cut(None);
        match self {
            Self::Req(request) => {
                cut.queue_pair(&mut request.qp);
                cut.terms(&mut request.terms);
                // 256 to 4096 bytes.
                cut.number("the MTU", &mut request.mtu, 1..=5);
                cut.number("the retry count", &mut request.retry_count, 0..=7);
                cut.number("the ACK timeout", &mut request.ack_timeout, 0..=31);
                cut.bytes(&mut request.private_data, REQ_BYTES_MAX);
            }
            Self::Rep(reply) => {
                cut.queue_pair(&mut reply.qp);
                cut.terms(&mut reply.terms);
                cut.bytes(&mut reply.private_data, REP_BYTES_MAX);
            }
            Self::Rej(rejection) => cut.bytes(&mut rejection.private_data, REJ_BYTES_MAX),
            Self::SidrReq(request) => cut.bytes(&mut request.private_data, SIDR_REQ_BYTES_MAX),
            Self::SidrRep(reply) => {
                cut.number("the queue pair number", &mut reply.qp_num, IN_24_BITS);
                cut.bytes(&mut reply.private_data, SIDR_REP_BYTES_MAX);
            }
            Self::Rtu | Self::Dreq | Self::Drep => {}
        }
        cut.0
    }
}

fn malformed(error: postcard::Error) -> Malformed {
    match error {
        postcard::Error::DeserializeUnexpectedEnd => Malformed::Short,
        _ => Malformed::OutOfRange("a field"),
    }
}

const IN_24_BITS: RangeInclusive<u32> = 0..=0x00ff_ffff;

/// A field that was out of range.
struct Cut(Option<&'static str>);

impl Cut {
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

    fn terms(&mut self, terms: &mut Terms) {
        self.number("the RNR retry count", &mut terms.rnr_retry_count, 0..=7);
    }
}

/// Addresses with the scope of IPv6.
mod address {
    use super::{Deserialize, Deserializer, IpAddr, Serialize, Serializer, SocketAddr, SocketAddrV6};

    pub fn serialize<S: Serializer>(address: &SocketAddr, to: S) -> Result<S::Ok, S::Error> {
        let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
        (address.ip(), address.port(), scope).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
        let (ip, port, scope) = Deserialize::deserialize(from)?;
        Ok(match ip {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        })
    }
}

#[cfg(test)]
mod tests;
