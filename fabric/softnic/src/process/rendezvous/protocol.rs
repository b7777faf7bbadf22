//! Messages of a rendezvous socket: a versioned header, then a body encoded by postcard. Descriptors are sent as
//! ancillary data.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Maximum length of a message in bytes.
pub(super) const MAX_FRAME_BYTES: usize = 96;

const MAGIC: [u8; 4] = *b"fcrv";

/// Version of the messages and of all segment layouts that they refer to.
const VERSION: u16 = 8;

/// A request to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Chosen by the requester and returned in the reply.
    pub(crate) id: u32,
    pub(crate) body: RequestBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestBody {
    /// Requests the identity of the process. `asymmetric`: the requester relies on membarrier.
    Hello { asymmetric: bool },
    /// Requests access to `dst_qpn` for the requester's `src_qpn` in the process `instance`. `incarnation`
    /// is the number of resets of `src_qpn`; `transport` is a `Connected`. Descriptors: the completion queue at which
    /// the requester waits for credit, then its event descriptor if there is one.
    Connect {
        instance: u64,
        src_qpn: u32,
        incarnation: u32,
        dst_qpn: u32,
        transport: u32,
        credit: CqLocation,
    },
    /// Requests the region `rkey` as accessed through `dst_qpn`. `receive`: for writing messages to posted receives,
    /// and not for one-sided access.
    MapRegion { dst_qpn: u32, rkey: u32, receive: bool },
    /// Requests an access to memory that is not granted to the requester. The bytes are transferred in a sealed memfd,
    /// from its start, whose descriptor is attached.
    Access(Access),
    /// Requests a ring for datagrams to `dst_qpn`, for the requester's `src_qpn` in the process `instance`. A repeated
    /// request returns a new ring and closes the old one.
    OpenDatagrams { instance: u64, src_qpn: u32, dst_qpn: u32 },
    /// Requests that messages sent to `dst_qpn` are matched with its shared receives, because its application thread
    /// appears to do other work. If the queue pair has receives of its own: announces the first message. No reply.
    Match { dst_qpn: u32 },
    /// Reports that the requester's queue pair, in this incarnation, has violated the rules of `dst_qpn`. No reply.
    Violated { dst_qpn: u32, incarnation: u32, violation: Violation },
    /// Announces that the peer of `dst_qpn` is ready to receive now. No reply.
    Ready { dst_qpn: u32 },
    /// Requests a reply when more than `consumed` datagrams were consumed from the ring announced at `bit`, or more
    /// than `posted` receives were posted to `dst_qpn`. If `posted` is `None`, receives are irrelevant.
    AwaitReceiverProgress { dst_qpn: u32, bit: u32, consumed: u64, posted: Option<u64> },
}

/// Location at which a completion queue is notified: offset of its words in the attached memfd, the bit, and whether an
/// event descriptor follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CqLocation {
    pub(crate) offset: u32,
    pub(crate) bit: u32,
    pub(crate) event: bool,
}

/// Kind of violation of a target's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Violation {
    /// The initiator was not permitted to access memory.
    Access,
    /// The target does not support the request.
    Request,
}

/// An access that the process that owns the memory executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) dst_qpn: u32,
    /// Incarnation of the requester's queue pair, as in [`RequestBody::Connect`]. Requests of an earlier one are not
    /// executed.
    pub(crate) incarnation: u32,
    /// Distinguishes it from other accesses of the requester.
    pub(crate) number: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u32,
    pub(crate) operation: Operation,
}

/// Operation on the memory of the executing process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// Copies memory to the memfd.
    Read,
    /// Copies the memfd to memory, its final byte last.
    Write,
    /// Like `Write`, to a posted receive.
    Place,
    /// Adds to 8 bytes; the reply contains their previous value.
    FetchAdd { add: u64 },
    /// Replaces 8 bytes if they equal `compare`; the reply contains their previous value.
    CompareSwap { compare: u64, swap: u64 },
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) id: u32,
    pub(crate) body: ReplyBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReplyBody {
    Refused(Refusal),
    /// Descriptor: the table of region generations.
    Hello {
        instance: u64,
        asymmetric: bool,
    },
    /// Descriptors: inbound segment, receive completion queue, then its event descriptor if there is one. `ring`:
    /// offset of the segment in its memfd, and its length.
    Connect {
        pd: u32,
        ring: (u64, u64),
        recv: CqLocation,
    },
    MapRegion(RegionGrant),
    /// The access was executed. `value`: the previous value, for an atomic.
    Access {
        value: u64,
    },
    /// Descriptors: ring, receiver status, receive completion queue, then its event descriptor if the flag is set.
    OpenDatagrams {
        recv: CqLocation,
    },
    /// The condition of [`RequestBody::AwaitReceiverProgress`] holds, or can never hold.
    Place,
}

/// A region, with the descriptors that `reach` specifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionGrant {
    /// Address of the first byte in requests and receives.
    pub(crate) addr: u64,
    /// Address of the first byte in the granting process.
    pub(crate) memory_addr: u64,
    pub(crate) len_bytes: u64,
    /// Offset of the mapped part in the memfd, and its offset and length in the region.
    pub(crate) file_offset: u64,
    pub(crate) mapped_offset: u64,
    pub(crate) mapped_len_bytes: u64,
    pub(crate) generation: u32,
    pub(crate) access: u32,
    pub(crate) reach: Reach,
}

/// Kind of access to a granted region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// The descriptor is a sealed memfd to be mapped.
    Mapped,
    /// The descriptor is the address space of the granting process.
    AddressSpace,
    /// No descriptor; accessed by [`RequestBody::Access`].
    Owner,
    /// One part like `Mapped`, the rest like `AddressSpace`: two descriptors.
    Partly,
}

/// Reason for which a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    UnknownQp,
    Taken,
    UnknownKey,
    FencesDiffer,
    Malformed,
    /// Not final: the queue pair does not know yet which peer to accept. The request must be repeated.
    NotReady,
    Transport,
    /// The memory is not mapped, or its protection has changed since the registration.
    Fault,
    /// The operation is malformed: alignment or length.
    Invalid,
    NoRoom,
}

impl Refusal {
    /// Returns whether a repeated request would be refused again.
    pub(crate) const fn is_final(self) -> bool {
        !matches!(self, Self::NotReady | Self::Taken | Self::UnknownQp | Self::NoRoom)
    }

    /// Returns the reason as text.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::UnknownQp => "it has no such queue pair",
            Self::Taken => {
                "the queue pair is connected to another peer, or to an earlier incarnation of this one: it must be reset"
            }
            Self::Transport => "the queue pair is of another transport",
            Self::NoRoom => "it has no memory or place for one more sender",
            Self::NotReady => "the queue pair is not ready to receive",
            Self::Fault => "the registered memory is no longer mapped, or no longer permits the access",
            Self::Invalid => "the operation is malformed",
            Self::UnknownKey => "no such key in the queue pair's protection domain",
            Self::FencesDiffer => {
                "one process may use membarrier and the other may not (set FARCALL_NO_MEMBARRIER for both)"
            }
            Self::Malformed => "it did not understand the request (another version?)",
        }
    }
}

/// Message kinds in the header.
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

fn header(kind: u16) -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..].copy_from_slice(&kind.to_le_bytes());
    header
}

fn encode(kind: u16, content: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(content, header(kind).to_vec()).expect("a vector takes everything")
}

/// Decodes a message of this version; `None` if any byte does not belong to it.
fn decode<T: DeserializeOwned>(kind: u16, frame: &[u8]) -> Option<T> {
    let body = frame.strip_prefix(&header(kind)).filter(|_| frame.len() <= MAX_FRAME_BYTES)?;
    postcard::take_from_bytes(body).ok().and_then(|(content, rest)| rest.is_empty().then_some(content))
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(REQUEST, self)
    }

    pub(crate) fn decode(frame: &[u8]) -> Option<Self> {
        decode(REQUEST, frame)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(REPLY, self)
    }

    pub(crate) fn decode(frame: &[u8]) -> Option<Self> {
        decode(REPLY, frame)
    }
}

/// Feeds arbitrary bytes to the decoders and checks that accepted bytes encode to themselves. For fuzzing.
#[doc(hidden)]
pub fn fuzz_frame(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the longest request of each kind, and others.
    fn requests() -> Vec<RequestBody> {
        let (word, long) = (u32::MAX, u64::MAX);
        let operation = Operation::CompareSwap { compare: long, swap: long };
        let (dst_qpn, src_qpn, incarnation, number, rkey) = (word, word, word, word, word);
        vec![
            RequestBody::Hello { asymmetric: true },
            RequestBody::Connect {
                instance: long,
                src_qpn,
                incarnation,
                dst_qpn,
                transport: 1,
                credit: CqLocation { offset: word, bit: word, event: true },
            },
            RequestBody::MapRegion { dst_qpn: 7, rkey: 9, receive: true },
            RequestBody::Access(Access {
                dst_qpn,
                incarnation,
                number,
                rkey,
                addr: long,
                len_bytes: word,
                operation,
            }),
            RequestBody::OpenDatagrams { instance: 1, src_qpn: 2, dst_qpn: 3 },
            RequestBody::Match { dst_qpn: 8 },
            RequestBody::Violated { dst_qpn: 8, incarnation: 9, violation: Violation::Request },
            RequestBody::Ready { dst_qpn: 8 },
            RequestBody::AwaitReceiverProgress { dst_qpn, bit: word, consumed: long, posted: Some(long) },
        ]
    }

    fn replies() -> Vec<ReplyBody> {
        let long = u64::MAX;
        vec![
            ReplyBody::Refused(Refusal::NoRoom),
            ReplyBody::Hello { instance: 1, asymmetric: false },
            ReplyBody::Connect {
                pd: u32::MAX,
                ring: (long, long),
                recv: CqLocation { offset: u32::MAX, bit: u32::MAX, event: true },
            },
            ReplyBody::MapRegion(RegionGrant {
                addr: long,
                memory_addr: long,
                len_bytes: long,
                file_offset: long,
                mapped_offset: long,
                mapped_len_bytes: long,
                generation: u32::MAX,
                access: u32::MAX,
                reach: Reach::Partly,
            }),
            ReplyBody::Access { value: long },
            ReplyBody::OpenDatagrams { recv: CqLocation { offset: 0, bit: 6, event: true } },
            ReplyBody::Place,
        ]
    }

    #[test]
    fn frames_round_trip_and_garbage_is_refused() {
        for body in requests() {
            let request = Request { id: u32::MAX, body };
            let frame = request.encode();
            assert!(frame.len() <= MAX_FRAME_BYTES);
            assert_eq!(Request::decode(&frame), Some(request));
            assert_eq!(Reply::decode(&frame), None);
            let mut other_version = frame.clone();
            other_version[4] = 1;
            assert_eq!(Request::decode(&other_version), None);
            for short in 0..frame.len() {
                assert_eq!(Request::decode(&frame[..short]), None);
            }
            assert_eq!(Request::decode(&[&frame[..], &[0]].concat()), None);
        }
        for body in replies() {
            let reply = Reply { id: u32::MAX, body };
            let frame = reply.encode();
            assert!(frame.len() <= MAX_FRAME_BYTES);
            assert_eq!(Reply::decode(&frame), Some(reply));
            assert_eq!(Request::decode(&frame), None);
        }
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Request::decode(&[0xFF; MAX_FRAME_BYTES]), None);
    }

    /// Rewrites the fuzzer's seed inputs after a change of the messages: `cargo test ... -- --ignored`.
    #[test]
    #[ignore = "writes files"]
    fn write_fuzz_seeds() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/softnic_frame");
        for (at, body) in requests().into_iter().enumerate() {
            std::fs::write(folder.join(format!("ask-{at}")), Request { id: 1, body }.encode()).unwrap();
        }
        for (at, body) in replies().into_iter().enumerate() {
            std::fs::write(folder.join(format!("reply-{at}")), Reply { id: 1, body }.encode()).unwrap();
        }
    }
}
