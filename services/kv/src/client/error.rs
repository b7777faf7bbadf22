//! What can go wrong between a client and the partitions of a store.

use farcall_rpc::{CallError, ConnectError, Executed};
use thiserror::Error;

use crate::key::KeyError;
use crate::wire::{ReplyError, ServiceError};

/// There is no connection to the store.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvConnectError {
    /// A partition cannot be reached.
    #[error("partition {partition}: {source}")]
    Unreachable {
        /// Which.
        partition: u16,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// What answers is no store.
    #[error("partition {partition} does not answer as a key-value service: {source}")]
    NoStore {
        /// Which.
        partition: u16,
        /// What it did instead.
        #[source]
        source: Box<KvError>,
    },
    /// The threads of the server tell different stories.
    #[error(
        "thread {thread} answers as partition {partition} of {partitions}, the first one said there are {expected}: \
         the server restarted meanwhile, or is none of ours; connect again"
    )]
    Disagreement {
        /// The thread that was asked.
        thread: u16,
        /// The partition it says it serves.
        partition: u32,
        /// How many it says there are.
        partitions: u32,
        /// How many the first one said there are.
        expected: u32,
    },
}

impl KvConnectError {
    /// Whether the server refused because it serves on another provider than ours.
    pub fn is_other_provider(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if source.is_other_provider())
    }
}

/// A request to the store failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvError {
    /// The key cannot be one; nothing was sent.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The call failed; [`KvError::executed`] says what is known about it.
    #[error(transparent)]
    Call(CallError),
    /// The key lives in another partition than before. Nothing was executed.
    #[error("the server was restarted with other partitions: connect again ({0})")]
    Moved(String),
    /// The value is too long; nothing was changed.
    #[error("the value is too large: this store takes at most {max_bytes} bytes")]
    ValueTooLarge {
        /// The largest value the store takes.
        max_bytes: u64,
    },
    /// The store is full and does not evict; nothing was changed.
    #[error("the store is full and does not evict: delete records or raise its limit")]
    OutOfMemory,
    /// The value is no decimal number; nothing was changed.
    #[error("the value is no decimal number below 2^64")]
    NotANumber,
    /// The server's answer is not understood.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

impl KvError {
    /// Whether the request was executed.
    #[must_use]
    pub const fn executed(&self) -> Executed {
        match self {
            Self::Call(error) => error.executed(),
            Self::Reply(_) => Executed::Yes,
            // Refused before anything was changed.
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
