//! Methods of the echo service (`farcall rpc serve`) with their requests and expected replies.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Length in bytes of a request to [`Callee::Head`] and [`Callee::Block`].
const REQUEST_LEN_BYTES: u32 = 64;
/// Length in bytes of a reply of [`Callee::Head`].
const REPLY_LEN_BYTES: u32 = 8;
/// Error of a call whose reply differs from the expected one.
pub(super) const WRONG_ECHO: &str = "the echo came back with other bytes";
/// Byte that fills the echo service's blocks.
const BLOCK_BYTE: u8 = 0x5A;

/// A method of the echo service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Callee {
    /// A request of 64 bytes; the reply contains its first eight bytes.
    Head,
    /// Computes for a given time, and replies without data.
    Work {
        /// Computation time in microseconds.
        us: u32,
    },
    /// A request of 64 bytes, a reply of a given length.
    Block {
        /// Length of the reply in bytes.
        len_bytes: u32,
    },
    /// Calls with the shape that the user specified.
    Job(Job),
}

/// Shape of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Length of the request in bytes, at least eight.
    pub request_bytes: u32,
    /// Length of the reply in bytes.
    pub response_bytes: u32,
    /// Computation time of the server in microseconds.
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

/// A request, created once and numbered for each call.
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

    /// Returns the request of call `number`.
    #[inline]
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        if self.callee == Callee::Head {
            self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        }
        &self.bytes
    }
}

impl Callee {
    /// Returns the method for such calls: small default ones use [`Callee::Head`].
    pub(crate) const fn of(job: Job) -> Self {
        match job {
            Job { request_bytes: REQUEST_LEN_BYTES, response_bytes: REPLY_LEN_BYTES, process_us: 0 } => {
                Self::Head
            }
            job => Self::Job(job),
        }
    }

    /// Returns the method number of `farcall rpc serve`.
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

    /// Returns whether `reply` is the reply to call `number`.
    #[inline]
    pub(super) fn is_right(self, number: u64, reply: &[u8]) -> bool {
        if self == Self::Head {
            return *reply == number.to_le_bytes();
        }
        let is_ours = |byte: Option<&u8>| byte.is_none_or(|byte| *byte == BLOCK_BYTE);
        reply.len() == self.reply_len_bytes() as usize && is_ours(reply.first()) && is_ours(reply.last())
    }
}
