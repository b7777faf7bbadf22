//! Errors between a client and the partitions of a store.

use farcall_rpc::{CallError, ConnectError, Executed};
use thiserror::Error;

use crate::key::KeyError;
use crate::wire::{ReplyError, ServiceError};

/// A connection to the store cannot be established.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvConnectError {
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] farcall_verbs::Error),
    /// A partition cannot be reached.
    #[error("partition {partition} cannot be reached")]
    Unreachable {
        /// Number of the partition.
        partition: u16,
        /// The cause.
        #[source]
        source: ConnectError,
    },
    /// The server is not a store.
    #[error("partition {partition} does not answer as a key-value service")]
    NoStore {
        /// Number of the partition.
        partition: u16,
        /// The unexpected result.
        #[source]
        source: Box<KvError>,
    },
    /// The threads of the server contradict each other.
    #[error(
        "thread {thread} answers as partition {partition} of {partitions}, the first one said there are {expected}: \
         the server restarted meanwhile, or is none of ours; connect again"
    )]
    Disagreement {
        /// The thread that replied.
        thread: u16,
        /// The partition that it serves according to its reply.
        partition: u32,
        /// The number of partitions according to its reply.
        partitions: u32,
        /// The number of partitions according to the first thread.
        expected: u32,
    },
}

impl KvConnectError {
    /// Returns whether the server refused the connection because it uses another provider than this client.
    pub fn is_other_provider(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if source.is_other_provider())
    }
}

/// A request to the store failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvError {
    /// The key is invalid; nothing was sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The call failed; [`KvError::executed`] returns whether it was executed.
    #[error(transparent)]
    Call(CallError),
    /// The key now belongs to another partition. Nothing was executed.
    #[error("the server was restarted with other partitions: connect again ({0})")]
    Moved(String),
    /// The value is too long; nothing was changed.
    #[error("the value is too large: this store takes at most {max_bytes} bytes")]
    ValueTooLarge {
        /// Maximum length of a value in bytes.
        max_bytes: u64,
    },
    /// The store is full and does not evict; nothing was changed.
    #[error("the store is full and does not evict: delete records or raise its limit")]
    OutOfMemory,
    /// The value is no decimal number; nothing was changed.
    #[error("the value is no decimal number below 2^64")]
    NotANumber,
    /// The reply of the server is invalid.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

impl KvError {
    /// Returns whether the request was executed.
    #[must_use]
    pub const fn executed(&self) -> Executed {
        match self {
            Self::Call(error) => error.executed(),
            Self::Reply(_) => Executed::Yes,
            // Refused before any change.
            _ => Executed::No,
        }
    }
}

impl From<CallError> for KvError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Application { code: ServiceError::WRONG_PARTITION_CODE, message } => {
                Self::Moved(message)
            }
            other => Self::Call(other),
        }
    }
}
