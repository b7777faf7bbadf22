//! The frames of a rendezvous socket: fixed size, little-endian, versioned. Descriptors travel beside them.

/// Bytes of every frame.
pub(crate) const FRAME_BYTES: usize = 80;

const MAGIC: u32 = u32::from_le_bytes(*b"fcrv");

/// Version of the frames and of every segment layout behind them.
const VERSION: u16 = 1;

/// What a process asks of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Chosen by the asker, returned in the reply.
    pub(crate) id: u32,
    pub(crate) body: RequestBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// Who are you? `asymmetric`: whether the asker relies on membarrier.
    Hello { asymmetric: bool },
    /// Give me the way into `dst_qpn`, for my `src_qpn` in the process `instance`, in its `life`: the number of its
    /// resets. `transport`: see `qp::Connected`. Descriptors: the completion queue where I wait for credit, then its event
    /// descriptor if there is one.
    Connect {
        instance: u64,
        src_qpn: u32,
        life: u32,
        dst_qpn: u32,
        transport: u32,
        credit_bit: u32,
        credit_event: bool,
    },
    /// Give me the region `rkey` as seen through `dst_qpn`; `receive`: to place messages into posted receives, not for
    /// one-sided access.
    MapRegion { dst_qpn: u32, rkey: u32, receive: bool },
    /// Access memory for me that you grant nobody directly. Bytes travel in a sealed memfd, from its beginning, whose
    /// descriptor comes along.
    Access(Access),
    /// Give me a way for datagrams into `dst_qpn`, for my `src_qpn` in the process `instance`. Asked again, it is a new
    /// one, and the old one is closed.
    OpenDatagrams { instance: u64, src_qpn: u32, dst_qpn: u32 },
    /// Match what I have sent to `dst_qpn` with its shared receives; its owner seems to do something else. Or, if it has receives of
    /// its own: I have sent the first message. No answer.
    Match { dst_qpn: u32 },
    /// I have broken the rules of `dst_qpn` in my `life`. No answer.
    Violated { dst_qpn: u32, life: u32, violation: Violation },
}

/// How an initiator broke the rules of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It was not allowed to access memory.
    Access = 0,
    /// Its request was not one that the target supports.
    Request = 1,
}

impl Violation {
    fn from_number(number: u32) -> Option<Self> {
        [Self::Access, Self::Request].into_iter().find(|violation| *violation as u32 == number)
    }
}

/// An access that the owner of memory executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Operation {
    /// A number and two operands.
    const fn to_words(self) -> (u32, u64, u64) {
        match self {
            Self::Read => (1, 0, 0),
            Self::Write => (2, 0, 0),
            Self::Place => (3, 0, 0),
            Self::FetchAdd { add } => (4, add, 0),
            Self::CompareSwap { compare, swap } => (5, compare, swap),
        }
    }

    const fn from_words(number: u32, first: u64, second: u64) -> Option<Self> {
        match (number, first, second) {
            (1, 0, 0) => Some(Self::Read),
            (2, 0, 0) => Some(Self::Write),
            (3, 0, 0) => Some(Self::Place),
            (4, add, 0) => Some(Self::FetchAdd { add }),
            (5, compare, swap) => Some(Self::CompareSwap { compare, swap }),
            _ => None,
        }
    }
}

/// How a granted region is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The descriptor is a sealed memfd to be mapped.
    Mapped = 0,
    /// The descriptor is the owner's address space.
    AddressSpace = 1,
    /// No descriptor: by [`RequestBody::Access`].
    Owner = 2,
    /// A part as `Mapped`, the rest as `AddressSpace`: two descriptors.
    Partly = 3,
}

impl Reach {
    fn from_number(number: u32) -> Option<Self> {
        let all = [Self::Mapped, Self::AddressSpace, Self::Owner, Self::Partly];
        all.into_iter().find(|reach| *reach as u32 == number)
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) id: u32,
    pub(crate) body: ReplyBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyBody {
    /// No. The number is a [`refusal`] reason.
    Refused(u32),
    /// One descriptor: the table of region generations.
    Hello { instance: u64, asymmetric: bool },
    /// Descriptors: inbound segment, receive CQ, then its event descriptor if there is one.
    Connect { pd: u32, recv_bit: u32, recv_event: bool },
    /// What `reach` says: the memory, or a descriptor of it. `addr` and `len_bytes` are the region's; `mapped_addr` and
    /// `mapped_len_bytes` those of what lies in the memfd from `file_offset` on.
    MapRegion {
        addr: u64,
        len_bytes: u64,
        file_offset: u64,
        generation: u32,
        access: u32,
        reach: Reach,
        mapped_addr: u64,
        mapped_len_bytes: u64,
    },
    /// The access was executed. `value`: what an atomic found.
    Access { value: u64 },
    /// Descriptors: the ring, the board, the receive CQ, then its event descriptor as the flag says.
    OpenDatagrams { recv_bit: u32, recv_event: bool },
}

/// Why a request was refused.
pub(crate) mod refusal {
    pub(crate) const UNKNOWN_QP: u32 = 1;
    pub(crate) const TAKEN: u32 = 2;
    pub(crate) const UNKNOWN_KEY: u32 = 3;
    pub(crate) const FENCES_DIFFER: u32 = 4;
    pub(crate) const MALFORMED: u32 = 5;
    /// Not a final answer: the queue pair is not told yet whom to accept. Ask again.
    pub(crate) const NOT_READY: u32 = 6;
    pub(crate) const TRANSPORT: u32 = 7;
    /// The memory is not there, or not as it was when it was registered.
    pub(crate) const FAULT: u32 = 8;
    /// The operation is malformed: alignment, length.
    pub(crate) const INVALID: u32 = 9;
    pub(crate) const NO_ROOM: u32 = 10;

    /// The reason in words.
    pub(crate) const fn text(reason: u32) -> &'static str {
        match reason {
            UNKNOWN_QP => "it has no such queue pair",
            TAKEN => {
                "the queue pair is connected to another peer, or to an earlier life of ours: it must be reset"
            }
            TRANSPORT => "the queue pair is of another transport",
            NO_ROOM => "it has no memory or place for one more sender",
            NOT_READY => "the queue pair is not ready to receive",
            FAULT => "the registered memory is no longer mapped, or no longer permits the access",
            INVALID => "the operation is malformed",
            UNKNOWN_KEY => "no such key in the queue pair's protection domain",
            FENCES_DIFFER => {
                "one process may use membarrier and the other may not (set FARCALL_NO_MEMBARRIER for both)"
            }
            _ => "it did not understand the request (another version?)",
        }
    }
}

struct Writer {
    frame: [u8; FRAME_BYTES],
    at: usize,
}

impl Writer {
    fn new(kind: u16, id: u32) -> Self {
        let mut writer = Self { frame: [0; FRAME_BYTES], at: 0 };
        writer.u32(MAGIC).u16(VERSION).u16(kind).u32(id);
        writer
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.frame[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn u16(&mut self, v: u16) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u32(&mut self, v: u32) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u64(&mut self, v: u64) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Of a whole frame, no byte more or less.
    fn of(frame: &'a [u8]) -> Option<Self> {
        (frame.len() == FRAME_BYTES).then_some(Self { rest: frame })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u32()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Kind and id of a frame of our version.
    fn header(&mut self) -> Option<(u16, u32)> {
        let ours = self.u32()? == MAGIC && self.u16()? == VERSION;
        let header = (self.u16()?, self.u32()?);
        ours.then_some(header)
    }
}

impl Request {
    pub(crate) fn encode(&self) -> [u8; FRAME_BYTES] {
        match self.body {
            RequestBody::Hello { asymmetric } => Writer::new(1, self.id).u32(asymmetric.into()).frame,
            RequestBody::Connect {
                instance,
                src_qpn,
                life,
                dst_qpn,
                transport,
                credit_bit,
                credit_event,
            } => {
                let mut writer = Writer::new(2, self.id);
                writer.u64(instance).u32(src_qpn).u32(life).u32(dst_qpn).u32(transport);
                writer.u32(credit_bit).u32(credit_event.into()).frame
            }
            RequestBody::MapRegion { dst_qpn, rkey, receive } => {
                Writer::new(3, self.id).u32(dst_qpn).u32(rkey).u32(receive.into()).frame
            }
            RequestBody::Access(access) => {
                let (operation, first, second) = access.operation.to_words();
                Writer::new(4, self.id)
                    .u32(access.dst_qpn)
                    .u32(access.life)
                    .u32(access.number)
                    .u32(access.rkey)
                    .u64(access.addr)
                    .u32(access.len_bytes)
                    .u32(operation)
                    .u64(first)
                    .u64(second)
                    .frame
            }
            RequestBody::OpenDatagrams { instance, src_qpn, dst_qpn } => {
                Writer::new(5, self.id).u64(instance).u32(src_qpn).u32(dst_qpn).frame
            }
            RequestBody::Match { dst_qpn } => Writer::new(6, self.id).u32(dst_qpn).frame,
            RequestBody::Violated { dst_qpn, life, violation } => {
                Writer::new(7, self.id).u32(dst_qpn).u32(life).u32(violation as u32).frame
            }
        }
    }

    pub(crate) fn decode(frame: &[u8]) -> Option<Self> {
        let mut r = Reader::of(frame)?;
        let (kind, id) = r.header()?;
        let body = match kind {
            1 => RequestBody::Hello { asymmetric: r.flag()? },
            2 => RequestBody::Connect {
                instance: r.u64()?,
                src_qpn: r.u32()?,
                life: r.u32()?,
                dst_qpn: r.u32()?,
                transport: r.u32()?,
                credit_bit: r.u32()?,
                credit_event: r.flag()?,
            },
            3 => RequestBody::MapRegion { dst_qpn: r.u32()?, rkey: r.u32()?, receive: r.flag()? },
            4 => RequestBody::Access(Access {
                dst_qpn: r.u32()?,
                life: r.u32()?,
                number: r.u32()?,
                rkey: r.u32()?,
                addr: r.u64()?,
                len_bytes: r.u32()?,
                operation: Operation::from_words(r.u32()?, r.u64()?, r.u64()?)?,
            }),
            5 => RequestBody::OpenDatagrams { instance: r.u64()?, src_qpn: r.u32()?, dst_qpn: r.u32()? },
            6 => RequestBody::Match { dst_qpn: r.u32()? },
            7 => RequestBody::Violated {
                dst_qpn: r.u32()?,
                life: r.u32()?,
                violation: Violation::from_number(r.u32()?)?,
            },
            _ => return None,
        };
        Some(Self { id, body })
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> [u8; FRAME_BYTES] {
        match self.body {
            ReplyBody::Refused(reason) => Writer::new(0x8000, self.id).u32(reason).frame,
            ReplyBody::Hello { instance, asymmetric } => {
                Writer::new(0x8001, self.id).u64(instance).u32(asymmetric.into()).frame
            }
            ReplyBody::Connect { pd, recv_bit, recv_event } => {
                Writer::new(0x8002, self.id).u32(pd).u32(recv_bit).u32(recv_event.into()).frame
            }
            ReplyBody::MapRegion {
                addr,
                len_bytes,
                file_offset,
                generation,
                access,
                reach,
                mapped_addr,
                mapped_len_bytes,
            } => {
                Writer::new(0x8003, self.id)
                    .u64(addr)
                    .u64(len_bytes)
                    .u64(file_offset)
                    .u32(generation)
                    .u32(access)
                    .u32(reach as u32)
                    .u64(mapped_addr)
                    .u64(mapped_len_bytes)
                    .frame
            }
            ReplyBody::Access { value } => Writer::new(0x8004, self.id).u64(value).frame,
            ReplyBody::OpenDatagrams { recv_bit, recv_event } => {
                Writer::new(0x8005, self.id).u32(recv_bit).u32(recv_event.into()).frame
            }
        }
    }

    pub(crate) fn decode(frame: &[u8]) -> Option<Self> {
        let mut r = Reader::of(frame)?;
        let (kind, id) = r.header()?;
        let body = match kind {
            0x8000 => ReplyBody::Refused(r.u32()?),
            0x8001 => ReplyBody::Hello { instance: r.u64()?, asymmetric: r.flag()? },
            0x8002 => ReplyBody::Connect { pd: r.u32()?, recv_bit: r.u32()?, recv_event: r.flag()? },
            0x8003 => ReplyBody::MapRegion {
                addr: r.u64()?,
                len_bytes: r.u64()?,
                file_offset: r.u64()?,
                generation: r.u32()?,
                access: r.u32()?,
                reach: Reach::from_number(r.u32()?)?,
                mapped_addr: r.u64()?,
                mapped_len_bytes: r.u64()?,
            },
            0x8004 => ReplyBody::Access { value: r.u64()? },
            0x8005 => ReplyBody::OpenDatagrams { recv_bit: r.u32()?, recv_event: r.flag()? },
            _ => return None,
        };
        Some(Self { id, body })
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

    #[test]
    fn frames_round_trip_and_garbage_is_refused() {
        let requests = [
            RequestBody::Hello { asymmetric: true },
            RequestBody::Connect {
                instance: u64::MAX,
                src_qpn: 1,
                life: 3,
                dst_qpn: 2,
                transport: 1,
                credit_bit: 4,
                credit_event: true,
            },
            RequestBody::MapRegion { dst_qpn: 7, rkey: 9, receive: true },
            RequestBody::Access(Access {
                dst_qpn: 1,
                life: 2,
                number: 3,
                rkey: 4,
                addr: 5,
                len_bytes: 6,
                operation: Operation::CompareSwap { compare: 7, swap: u64::MAX },
            }),
            RequestBody::OpenDatagrams { instance: 1, src_qpn: 2, dst_qpn: 3 },
            RequestBody::Match { dst_qpn: 8 },
            RequestBody::Violated { dst_qpn: 8, life: 9, violation: Violation::Request },
        ];
        for body in requests {
            let request = Request { id: 5, body };
            assert_eq!(Request::decode(&request.encode()), Some(request));
            let mut other_version = request.encode();
            other_version[4] = 2;
            assert_eq!(Request::decode(&other_version), None);
            assert_eq!(Request::decode(&request.encode()[..13]), None);
            assert_eq!(Request::decode(&request.encode()[..FRAME_BYTES - 1]), None);
            assert_eq!(Request::decode(&[&request.encode()[..], &[0]].concat()), None);
        }
        let replies = [
            ReplyBody::Refused(3),
            ReplyBody::Hello { instance: 1, asymmetric: false },
            ReplyBody::Connect { pd: 1, recv_bit: 2, recv_event: true },
            ReplyBody::MapRegion {
                addr: 1,
                len_bytes: 2,
                file_offset: 3,
                generation: 4,
                access: 5,
                reach: Reach::Partly,
                mapped_addr: 6,
                mapped_len_bytes: u64::MAX,
            },
            ReplyBody::Access { value: u64::MAX },
            ReplyBody::OpenDatagrams { recv_bit: 6, recv_event: true },
        ];
        for body in replies {
            let reply = Reply { id: 5, body };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
            assert_eq!(Request::decode(&reply.encode()), None);
        }
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Request::decode(&[0xFF; FRAME_BYTES]), None);
    }
}
