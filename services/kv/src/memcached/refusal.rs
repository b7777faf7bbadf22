//! Error replies.

use crate::store::{CounterError, StoreError};

pub(super) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(super) const BAD_COUNTER_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";
pub(super) const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
pub(super) const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
pub(super) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(super) const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
pub(super) const BAD_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";
pub(super) const BAD_MODE_LENGTH: &[u8] = b"CLIENT_ERROR incorrect length for M token\r\n";
pub(super) const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
pub(super) const DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";
pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const INVALID_FLAG: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
pub(super) const INVALID_FLAGS: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
pub(super) const BAD_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
pub(super) const BAD_META_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
pub(super) const TOO_MANY_FLAGS: &[u8] = b"CLIENT_ERROR options flags too long\r\n";
pub(super) const TOO_MANY_GET_FLAGS: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
pub(super) const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(super) const OK: &[u8] = b"OK\r\n";
pub(super) const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
pub(super) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

/// A line whose reply is an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reply: &'static [u8],
    /// Length of the following data block, which must be skipped, if the line contains it.
    pub(crate) skip_bytes: Option<u64>,
}

impl From<&'static [u8]> for Refusal {
    fn from(reply: &'static [u8]) -> Self {
        Refusal { reply, skip_bytes: None }
    }
}

/// Returns the error line for a refused write.
pub(super) fn refusal(error: StoreError) -> &'static [u8] {
    match error {
        StoreError::ValueTooLarge { .. } => TOO_LARGE,
        StoreError::OutOfMemory => OUT_OF_MEMORY,
    }
}

/// Returns the error line for a refused increment or decrement.
pub(super) fn counter_refusal(error: CounterError) -> &'static [u8] {
    match error {
        CounterError::NotANumber => NOT_A_NUMBER,
        CounterError::Store(error) => refusal(error),
    }
}
