//! What the echo service (`farcall rpc serve`) is asked for, and what it must answer.

use serde::{Deserialize, Serialize};

/// Bytes of a request to [`Callee::Head`] and [`Callee::Block`].
pub(crate) const REQUEST_LEN_BYTES: u32 = 64;
/// Bytes of a reply of [`Callee::Head`].
pub(crate) const REPLY_LEN_BYTES: u32 = 8;
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
    /// So many bytes there and so many back, after so long a computation.
    Task {
        /// How long.
        us: u32,
        /// Bytes there, at least eight.
        request_len_bytes: u32,
        /// Bytes back.
        reply_len_bytes: u32,
    },
}

/// A request, made once and numbered for each call.
pub(super) struct Request {
    callee: Callee,
    bytes: Vec<u8>,
}

impl Request {
    pub(super) fn new(callee: Callee) -> Self {
        let words: &[u32] = match &callee {
            Callee::Head => &[],
            Callee::Work { us } => &[*us],
            Callee::Block { len_bytes } => &[*len_bytes],
            Callee::Task { us, reply_len_bytes, .. } => &[*us, *reply_len_bytes],
        };
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(callee.request_len_bytes(), 0);
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
    /// As `farcall rpc serve` numbers them.
    pub(super) const fn method(self) -> u16 {
        match self {
            Self::Head => 2,
            Self::Work { .. } => 3,
            Self::Block { .. } => 4,
            Self::Task { .. } => 5,
        }
    }

    const fn request_len_bytes(self) -> usize {
        match self {
            Self::Head | Self::Block { .. } => REQUEST_LEN_BYTES as usize,
            Self::Work { .. } => 4,
            Self::Task { request_len_bytes, .. } => request_len_bytes as usize,
        }
    }

    pub(super) const fn reply_len_bytes(self) -> u32 {
        match self {
            Self::Head => REPLY_LEN_BYTES,
            Self::Work { .. } => 0,
            Self::Block { len_bytes } => len_bytes,
            Self::Task { reply_len_bytes, .. } => reply_len_bytes,
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
