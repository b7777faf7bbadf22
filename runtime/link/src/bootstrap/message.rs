//! Messages of the handshake. Later versions append fields and messages; readers ignore fields that they do not know.

use std::fmt;

use bitflags::bitflags;
use farcall_verbs::{Gid, Mtu};
use serde::{Deserialize, Serialize};

use super::Refusal;
use crate::{Plan, RemoteRegion};

bitflags! {
    /// Abilities beyond the version. A set bit is an offer; an ability that both sides offer is used.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Features: u32 {
        /// Sleeping threads are woken by a WRITE or SEND with immediate data. Supported by every version from 1.
        const KICK = 1;
        /// Messages carry a CRC-32C. Required where placement is not in order.
        const CHECKSUM = 1 << 1;
        /// Requests may omit the header words that the server knows.
        const COMPACT = 1 << 2;
        /// The client collects the results of deferred calls.
        const DEFERRED = 1 << 3;
        /// The server wakes a client that waits for results of deferred calls when it can collect one.
        const ANSWERED = 1 << 4;
    }
}

impl Features {
    /// Returns [`Features::CHECKSUM`] if `is_needed`, otherwise no feature.
    pub const fn checksum(is_needed: bool) -> Self {
        if is_needed { Self::CHECKSUM } else { Self::empty() }
    }
}

/// Address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// Queue pair number (24 bits).
    pub qp_num: u32,
    /// First packet sequence number (24 bits).
    pub psn: u32,
    /// GID of its port.
    pub gid: [u8; 16],
    /// LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// log2 of the path MTU in bytes: 8 to 12.
    pub mtu_log2: u8,
}

impl QpInfo {
    /// Returns the GID.
    pub const fn gid(&self) -> Gid {
        Gid(self.gid)
    }

    /// Returns the MTU; the smallest one if the number is invalid.
    pub const fn mtu(&self) -> Mtu {
        match self.mtu_log2 {
            9 => Mtu::Mtu512,
            10 => Mtu::Mtu1024,
            11 => Mtu::Mtu2048,
            12 => Mtu::Mtu4096,
            _ => Mtu::Mtu256,
        }
    }
}

/// The regions that one side grants the other, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Destination of the peer's message WRITEs: the mailbox of the server, the reply slots of the client.
    pub messages: RemoteRegion,
    /// Source of the peer's result READs; a client grants no such region.
    pub results: RemoteRegion,
}

/// Identifier of a session. Not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// Returns the part of the identifier that each message carries.
    pub fn tag(&self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }

    /// Returns the server thread that has the session, which the last two bytes contain.
    pub fn thread(&self) -> u16 {
        u16::from_le_bytes([self.0[14], self.0[15]])
    }

    /// Returns the same identifier with `thread` as its server thread.
    #[must_use]
    pub fn at_thread(mut self, thread: u16) -> Self {
        [self.0[14], self.0[15]] = thread.to_le_bytes();
        self
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A value that `Debug` does not print.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret<T>(pub T);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// A client's request to resume a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionResumption {
    /// Identifier of the session.
    pub session: SessionId,
    /// Secret of the session.
    pub secret: Secret<[u8; 16]>,
    /// Incarnation of the server at which the session was opened.
    pub incarnation: u64,
    /// Lowest sequence number whose response the client does not have.
    pub oldest_seq: u32,
}

/// A message of the handshake. Its number on the wire is its position here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    Hello(Box<Hello>),
    Welcome(Box<Welcome>),
    /// The negative reply; ends the handshake.
    Refuse(Refusal),
    PostHandshake(PostHandshakeMessage),
    OpenStream(Box<StreamEnd>),
    StreamOpened(Box<StreamEnd>),
    /// Alternative reply to `OpenStream`: all later bytes on this channel are the stream.
    StreamOverChannel,
}

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the client's provider.
    pub provider: String,
    /// Queue pair of the client.
    pub qp: QpInfo,
    /// Regions that the client grants.
    pub grants: Grants,
    /// The point of the design space that the client requests.
    pub plan: Plan,
    /// Features that the client offers.
    pub features: Features,
    /// Number of the requested server thread (partition), or [`Hello::ANY_THREAD`].
    pub thread: u16,
    /// The session to resume.
    pub resume: Option<SessionResumption>,
    /// Queue pair that receives datagrams, if results are sent as datagrams.
    pub datagrams: Option<QpInfo>,
}

impl Hello {
    /// The server chooses the thread: the one that has the session to resume, or one with few connections.
    pub const ANY_THREAD: u16 = u16::MAX;
}

/// The server's position in a resumed session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The next sequence number that the server will execute. Results of lower numbers that the client does not have
    /// are in their slots.
    pub next_seq: u32,
}

/// The server's positive reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Name of the server's provider.
    pub provider: String,
    /// Queue pair of the server.
    pub qp: QpInfo,
    /// Regions that the server grants.
    pub grants: Grants,
    /// The plan, with numbers no larger than requested.
    pub plan: Plan,
    /// Features in use.
    pub features: Features,
    /// Incarnation of the server: each start has another number.
    pub incarnation: u64,
    /// Number of server threads (partitions).
    pub threads: u16,
    /// Identifier of the session.
    pub session: SessionId,
    /// Secret by which a client proves that it may resume the session.
    pub secret: Secret<[u8; 16]>,
    /// Key of the message tails of this connection.
    pub tail_key: Secret<u64>,
    /// Set if the requested session was resumed; `None` if the session is new.
    pub resumed: Option<Resumed>,
    /// Maximum length of a request in bytes.
    pub request_bytes_max: u32,
    /// Maximum length of a result in bytes.
    pub result_bytes_max: u32,
    /// The byte with which the client announces each request, if the plan uses one.
    pub mailbox_byte: Option<RemoteRegion>,
}

/// One end of a byte stream, as announced to the other: the first message of the client, and the reply of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnd {
    /// Name of this end's provider.
    pub provider: String,
    /// Queue pair of this end.
    pub qp: QpInfo,
    /// Destination of the other end's control words: how far it has written and read, and the wake-ups that it
    /// requests.
    pub words: RemoteRegion,
    /// Destination of the other end's bytes: a ring.
    pub ring: RemoteRegion,
    /// `true` if WRITEs to both regions are placed in order. If not, every control word must be sent with immediate
    /// data.
    pub is_in_order: bool,
    /// `true` if the channel of the handshake may carry the stream if no device can.
    pub may_use_channel: bool,
}

/// A message sent after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PostHandshakeMessage {
    /// The server drains: the client should finish its calls and use another server.
    GoingAway,
    /// The client has finished with its session; the server can discard it.
    CloseNotify,
    /// One end of a stream writes no more, and all bytes that it wrote have been placed.
    StreamEnded {
        /// Number of bytes that it wrote.
        bytes: u64,
    },
}
