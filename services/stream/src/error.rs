//! What goes wrong with a stream.

use std::io;

use farcall_link::bootstrap::{BootstrapError, Refusal};
use farcall_verbs::WcStatus;
use thiserror::Error;

/// Why a stream ended before its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Broken {
    /// The peer went without ending its stream: it was killed, it aborted, or its host is gone.
    #[error("the peer hung up without ending its stream")]
    HungUp,
    /// The device says that the peer does not answer.
    #[error("the connection failed: {0:?}")]
    Completion(WcStatus),
    /// The system says that the peer does not answer over TCP.
    #[error("the TCP connection failed: {0}")]
    Connection(String),
    /// What the peer says is impossible.
    #[error("the peer breaks the rules of streams: {0}; update the older of the two programs")]
    Protocol(String),
    /// The device refuses to go on.
    #[error("the device failed: {0}")]
    Verbs(String),
    /// This end gave the stream up.
    #[error("this end reset the stream")]
    Reset,
}

/// Why a stream gives or takes no bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// There is nothing to read, or no room to write, now.
    #[error("the stream is not ready")]
    WouldBlock,
    /// The stream is lost, with what had not arrived.
    #[error("the stream broke: {0}")]
    Reset(Broken),
    /// This end has ended its stream, or nobody reads it any more.
    #[error("nobody reads what is written to this stream any more")]
    BrokenPipe,
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            StreamError::Reset(_) => Self::new(io::ErrorKind::ConnectionReset, error),
            StreamError::BrokenPipe => Self::new(io::ErrorKind::BrokenPipe, error),
        }
    }
}

/// Why a stream could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is nobody at the address, or he does not answer.
    #[error("no stream to {address}: {source}; is a program listening for streams there?")]
    Unreachable {
        /// Who was called.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The other end refuses.
    #[error("no stream: {0}")]
    Refused(#[from] BootstrapError),
    /// We refuse what the other end says of itself.
    #[error("no stream: {0}")]
    Unusable(#[from] Refusal),
    /// The device refuses.
    #[error("no stream: {0}")]
    Verbs(#[from] farcall_verbs::Error),
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Unreachable { source, .. } => source.kind(),
            OpenError::Refused(_) => io::ErrorKind::ConnectionRefused,
            OpenError::Unusable(_) => io::ErrorKind::InvalidData,
            OpenError::Verbs(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
