//! What the echo service (`farcall rpc serve`) is asked for, and what it must answer.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a request to [`Callee::Head`] and [`Callee::Block`].
const REQUEST_LEN_BYTES: u32 = 64;
/// Bytes of a reply of [`Callee::Head`].
const REPLY_LEN_BYTES: u32 = 8;
/// What the echo service's blocks consist of.
const BLOCK_BYTE: u8 = 0x5A;

/// A method of the echo service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Callee {
    /// 64 bytes there, the first eight of them back.
    Head,
    /// Computes for so many microseconds, and answers with nothing.
    Work {
        /// How long.
        us: u32,
    },
    /// 64 bytes there, so many back.
    Block {
        /// How many.
        len_bytes: u32,
    },
    /// What somebody's calls are like.
    Job(Job),
}

/// A call of a certain shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Bytes there: eight at least.
    pub request_bytes: u32,
    /// Bytes back.
    pub response_bytes: u32,
    /// How long the server computes, in microseconds.
    pub process_us: u32,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B there, ", self.request_bytes)?;
        if self.process_us > 0 {
            write!(f, "{} µs, ", self.process_us)?;
        }
        write!(f, "{} B back", self.response_bytes)
    }
}

/// A request, made once and numbered for each call.
pub(super) struct Request {
    callee: Callee,
    bytes: Vec<u8>,
}

impl Request {
    pub(super) fn new(callee: Callee) -> Self {
        let words = match callee {
            Callee::Head => [0, 0],
            Callee::Work { us } => [us, 0],
            Callee::Block { len_bytes } => [len_bytes, 0],
            Callee::Job(job) => [job.response_bytes, job.process_us],
        };
        let mut bytes = words.map(u32::to_le_bytes).concat();
        bytes.resize(callee.request_len_bytes() as usize, 0);
        Self { callee, bytes }
    }

    /// The request of call `number`.
    #[inline]
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        if self.callee == Callee::Head {
            self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        }
        &self.bytes
    }
}

impl Callee {
    /// What serves such calls: the usual small ones need no block.
    pub(crate) const fn of(job: Job) -> Self {
        match job {
            Job { request_bytes: REQUEST_LEN_BYTES, response_bytes: REPLY_LEN_BYTES, process_us: 0 } => {
                Self::Head
            }
            job => Self::Job(job),
        }
    }

    /// As `farcall rpc serve` numbers them.
    pub(super) const fn method(self) -> u16 {
        match self {
            Self::Head => 2,
            Self::Work { .. } => 3,
            Self::Block { .. } => 4,
            Self::Job(_) => 5,
        }
    }

    pub(super) const fn request_len_bytes(self) -> u32 {
        match self {
            Self::Head | Self::Block { .. } => REQUEST_LEN_BYTES,
            Self::Work { .. } => 4,
            Self::Job(job) => job.request_bytes,
        }
    }

    pub(super) const fn reply_len_bytes(self) -> u32 {
        match self {
            Self::Head => REPLY_LEN_BYTES,
            Self::Work { .. } => 0,
            Self::Block { len_bytes } => len_bytes,
            Self::Job(job) => job.response_bytes,
        }
    }

    /// Whether this is the reply to call `number`.
    #[inline]
    pub(super) fn is_right(self, number: u64, reply: &[u8]) -> bool {
        if self == Self::Head {
            return *reply == number.to_le_bytes();
        }
        let is_ours = |byte: Option<&u8>| byte.is_none_or(|byte| *byte == BLOCK_BYTE);
        reply.len() == self.reply_len_bytes() as usize && is_ours(reply.first()) && is_ours(reply.last())
    }
}
