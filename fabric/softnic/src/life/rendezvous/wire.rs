//! The frames of a rendezvous socket: a versioned header, then a body in postcard's form. Descriptors travel beside
//! them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Bytes of a frame at most.
pub(super) const MAX_FRAME_BYTES: usize = 96;

const MAGIC: [u8; 4] = *b"fcrv";

/// Version of the frames and of every segment layout behind them.
const VERSION: u16 = 7;

/// What a process asks of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Chosen by the asker, returned in the reply.
    pub(crate) id: u32,
    pub(crate) body: RequestBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestBody {
    /// Who are you? `asymmetric`: whether the asker relies on membarrier.
    Hello { asymmetric: bool },
    /// Give me the way into `dst_qpn`, for my `src_qpn` in the process `instance`, in its `life`: the number of its
    /// resets. `transport`: see `Connected`. Descriptors: the completion queue where I wait for credit, then its event
    /// descriptor if there is one.
    Connect { instance: u64, src_qpn: u32, life: u32, dst_qpn: u32, transport: u32, credit: CqPlace },
    /// Give me the region `rkey` as seen through `dst_qpn`; `receive`: to place messages into posted receives, not for
    /// one-sided access.
    MapRegion { dst_qpn: u32, rkey: u32, receive: bool },
    /// Access memory for me that you grant nobody directly. Bytes travel in a sealed memfd, from its beginning, whose
    /// descriptor comes along.
    Access(Access),
    /// Give me a way for datagrams into `dst_qpn`, for my `src_qpn` in the process `instance`. Asked again, it is a new
    /// one, and the old one is closed.
    OpenDatagrams { instance: u64, src_qpn: u32, dst_qpn: u32 },
    /// Match what I have sent to `dst_qpn` with its shared receives; its owner seems to do something else. Or, if it
    /// has receives of its own: I have sent the first message. No answer.
    Match { dst_qpn: u32 },
    /// I have broken the rules of `dst_qpn` in my `life`. No answer.
    Violated { dst_qpn: u32, life: u32, violation: Violation },
    /// The peer of `dst_qpn` is ready to receive now. No answer.
    Ready { dst_qpn: u32 },
    /// Answer when you have taken more than `taken` datagrams out of the ring that you announced me at `bit`, or posted
    /// more than `posted` receives to `dst_qpn`; `None`: those do not matter.
    AwaitPlace { dst_qpn: u32, bit: u32, taken: u64, posted: Option<u64> },
}

/// Where something is announced to a completion queue: where its words begin in the memfd that comes along, the bit, and
/// whether an event descriptor follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CqPlace {
    pub(crate) offset: u32,
    pub(crate) bit: u32,
    pub(crate) event: bool,
}

/// How an initiator broke the rules of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Violation {
    /// It was not allowed to access memory.
    Access,
    /// Its request was not one that the target supports.
    Request,
}

/// An access that the owner of memory executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) dst_qpn: u32,
    /// The asker's life, as in [`RequestBody::Connect`]: what an earlier one left behind is not executed.
    pub(crate) life: u32,
    /// Tells it from the asker's other accesses.
    pub(crate) number: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u32,
    pub(crate) operation: Operation,
}

/// What an owner does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// Memory to memfd.
    Read,
    /// Memfd to memory, its final byte last.
    Write,
    /// As `Write`, into a posted receive.
    Place,
    /// Adds to 8 bytes; the reply has what they were.
    FetchAdd { add: u64 },
    /// Replaces 8 bytes if they equal `compare`; the reply has what they were.
    CompareSwap { compare: u64, swap: u64 },
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) id: u32,
    pub(crate) body: ReplyBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReplyBody {
    Refused(Refusal),
    /// One descriptor: the table of region generations.
    Hello {
        instance: u64,
        asymmetric: bool,
    },
    /// Descriptors: inbound segment, receive CQ, then its event descriptor if there is one. `ring`: where in its memfd
    /// the segment begins, and its length.
    Connect {
        pd: u32,
        ring: (u64, u64),
        recv: CqPlace,
    },
    MapRegion(RegionGrant),
    /// The access was executed. `value`: what an atomic found.
    Access {
        value: u64,
    },
    /// Descriptors: the ring, the board, the receive CQ, then its event descriptor as the flag says.
    OpenDatagrams {
        recv: CqPlace,
    },
    /// What [`RequestBody::AwaitPlace`] waits for has come, or never comes.
    Place,
}

/// A region, with the descriptors that `reach` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegionGrant {
    /// The address of its first byte in requests and receives.
    pub(crate) addr: u64,
    /// The address of its first byte in the address space of its owner.
    pub(crate) memory_addr: u64,
    pub(crate) len_bytes: u64,
    /// Where in the memfd that begins which is mapped, and which bytes of the region that is.
    pub(crate) file_offset: u64,
    pub(crate) mapped_offset: u64,
    pub(crate) mapped_len_bytes: u64,
    pub(crate) generation: u32,
    pub(crate) access: u32,
    pub(crate) reach: Reach,
}

/// How a granted region is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// The descriptor is a sealed memfd to be mapped.
    Mapped,
    /// The descriptor is the owner's address space.
    AddressSpace,
    /// No descriptor: by [`RequestBody::Access`].
    Owner,
    /// A part as `Mapped`, the rest as `AddressSpace`: two descriptors.
    Partly,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    UnknownQp,
    Taken,
    UnknownKey,
    FencesDiffer,
    Malformed,
    /// Not a final answer: the queue pair is not told yet whom to accept. Ask again.
    NotReady,
    Transport,
    /// The memory is not there, or not as it was when it was registered.
    Fault,
    /// The operation is malformed: alignment, length.
    Invalid,
    NoRoom,
}

impl Refusal {
    /// Whether who asks again is refused again.
    pub(crate) const fn is_final(self) -> bool {
        !matches!(self, Self::NotReady | Self::Taken | Self::UnknownQp | Self::NoRoom)
    }

    /// The reason in words.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::UnknownQp => "it has no such queue pair",
            Self::Taken => {
                "the queue pair is connected to another peer, or to an earlier life of ours: it must be reset"
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

/// What a frame holds; told in its header.
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

/// All of a frame of our version and nothing else.
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

/// Feeds arbitrary bytes to the decoders and checks that what they accept encodes to itself. For fuzzing.
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

    /// The longest of each kind, and others.
    fn requests() -> Vec<RequestBody> {
        let (word, long) = (u32::MAX, u64::MAX);
        let operation = Operation::CompareSwap { compare: long, swap: long };
        let (dst_qpn, src_qpn, life, number, rkey) = (word, word, word, word, word);
        vec![
            RequestBody::Hello { asymmetric: true },
            RequestBody::Connect {
                instance: long,
                src_qpn,
                life,
                dst_qpn,
                transport: 1,
                credit: CqPlace { offset: word, bit: word, event: true },
            },
            RequestBody::MapRegion { dst_qpn: 7, rkey: 9, receive: true },
            RequestBody::Access(Access {
                dst_qpn,
                life,
                number,
                rkey,
                addr: long,
                len_bytes: word,
                operation,
            }),
            RequestBody::OpenDatagrams { instance: 1, src_qpn: 2, dst_qpn: 3 },
            RequestBody::Match { dst_qpn: 8 },
            RequestBody::Violated { dst_qpn: 8, life: 9, violation: Violation::Request },
            RequestBody::Ready { dst_qpn: 8 },
            RequestBody::AwaitPlace { dst_qpn, bit: word, taken: long, posted: Some(long) },
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
                recv: CqPlace { offset: u32::MAX, bit: u32::MAX, event: true },
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
            ReplyBody::OpenDatagrams { recv: CqPlace { offset: 0, bit: 6, event: true } },
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

    /// Writes the fuzzer's first inputs anew, after a change of the frames: `cargo test ... -- --ignored`.
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
