//! What is said. Later versions append fields, and messages; readers ignore fields that they do not know.

use std::fmt;

use bitflags::bitflags;
use farcall_verbs::{Gid, Mtu};
use serde::{Deserialize, Serialize};

use super::{Refusal, StreamEnd};
use crate::{Plan, RemoteRegion};

bitflags! {
    /// Abilities beyond the version. A set bit is offered; a bit that both set is used.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Features: u32 {
        /// Sleepers are woken by a WRITE or SEND with immediate data. In every version from 1.
        const KICK = 1;
        /// Messages carry a CRC-32C. Needed where placement is not in order.
        const CHECKSUM = 1 << 1;
        /// Requests may leave out the words of their header that the server knows.
        const COMPACT = 1 << 2;
        /// The client collects the results of calls that are answered later.
        const DEFERRED = 1 << 3;
        /// The server wakes a client that waits for such results, once it may collect one.
        const ANSWERED = 1 << 4;
    }
}

impl Features {
    /// [`Features::CHECKSUM`], where it is needed.
    pub const fn checksum(is_needed: bool) -> Self {
        if is_needed { Self::CHECKSUM } else { Self::empty() }
    }
}

/// How to reach a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// Its number (24 bits).
    pub qp_num: u32,
    /// Its first packet sequence number (24 bits).
    pub psn: u32,
    /// The GID of its port.
    pub gid: [u8; 16],
    /// The LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// log2 of the path MTU in bytes: 8 to 12.
    pub mtu_log2: u8,
}

impl QpInfo {
    /// The GID.
    pub const fn gid(&self) -> Gid {
        Gid(self.gid)
    }

    /// The MTU; the smallest if the number is none.
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

/// The regions one side grants the other, by role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Where the peer WRITEs its messages: the server's mailbox, the client's reply slots.
    pub messages: RemoteRegion,
    /// Where the peer READs results; the client grants none.
    pub results: RemoteRegion,
}

/// A session's name. Not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// The part that each message carries.
    pub fn tag(&self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }

    /// The server thread that has the session: its last two bytes say so.
    pub fn thread(&self) -> u16 {
        u16::from_le_bytes([self.0[14], self.0[15]])
    }

    /// The same name, at a thread.
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

/// What is never printed.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret<T>(pub T);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// A client's wish to go on with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Which session.
    pub session: SessionId,
    /// Its secret.
    pub secret: Secret<[u8; 16]>,
    /// The server's incarnation it was opened at.
    pub incarnation: u64,
    /// The lowest sequence number whose response the client does not have.
    pub oldest_seq: u32,
}

/// A message of the handshake. Its number on the wire is its place here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    Hello(Box<Hello>),
    Welcome(Box<Welcome>),
    /// The other answer; ends the conversation.
    Refuse(Refusal),
    Notice(Notice),
    OpenStream(Box<StreamEnd>),
    StreamOpened(Box<StreamEnd>),
    /// The other answer: all that follows on this channel is the stream.
    StreamOverChannel,
}

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its provider's name.
    pub provider: String,
    /// Its queue pair.
    pub qp: QpInfo,
    /// What it grants.
    pub grants: Grants,
    /// The point of the design space it asks for.
    pub plan: Plan,
    /// What it can.
    pub features: Features,
    /// Which server thread (partition) it wants, or [`Hello::ANY_THREAD`].
    pub thread: u16,
    /// The session to go on with.
    pub resume: Option<Resume>,
    /// Where it takes datagrams, if results come so.
    pub datagrams: Option<QpInfo>,
}

impl Hello {
    /// The server chooses the thread: the one that has the session to go on with, or one with few connections.
    pub const ANY_THREAD: u16 = u16::MAX;
}

/// How far the server came with a session that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The next sequence number the server will execute; the results of all below that the client does not have wait in
    /// their slots.
    pub next_seq: u32,
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its provider's name.
    pub provider: String,
    /// Its queue pair.
    pub qp: QpInfo,
    /// What it grants.
    pub grants: Grants,
    /// The plan, with numbers no larger than asked for.
    pub plan: Plan,
    /// Features in use.
    pub features: Features,
    /// The server's incarnation: another number after each start.
    pub incarnation: u64,
    /// How many threads (partitions) it has.
    pub threads: u16,
    /// The session.
    pub session: SessionId,
    /// What proves that a client may go on with it.
    pub secret: Secret<[u8; 16]>,
    /// The key of the tails of this connection's messages.
    pub tail_key: Secret<u64>,
    /// Set if the session that was asked for goes on; otherwise this one is new.
    pub resumed: Option<Resumed>,
    /// The largest request, in bytes.
    pub request_bytes_max: u32,
    /// The largest result, in bytes.
    pub result_bytes_max: u32,
    /// The byte by which the client tells of each request, if it does.
    pub mailbox_byte: Option<RemoteRegion>,
}

/// What is said after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Notice {
    /// The server drains: finish, then go elsewhere.
    GoingAway,
    /// The client is done with its session; nothing of it need be kept.
    Goodbye,
    /// One end of a stream writes no more, and all that it wrote has been placed.
    StreamEnded {
        /// How many bytes it wrote.
        bytes: u64,
    },
}
