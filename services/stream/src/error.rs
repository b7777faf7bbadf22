//! Errors of streams.

use std::io;

use farcall_link::bootstrap::{BootstrapError, Refusal};
use farcall_verbs::WcStatus;
use thiserror::Error;

/// Reason why a stream broke before its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Broken {
    /// The peer disappeared without ending its stream: it was killed, it aborted, or its host failed.
    #[error("the peer hung up without ending its stream")]
    HungUp,
    /// The device reports that the peer does not respond.
    #[error("the connection failed: {0:?}")]
    Completion(WcStatus),
    /// The kernel reports that the peer does not respond over TCP.
    #[error("the TCP connection failed: {0}")]
    Connection(String),
    /// The peer sent an impossible value.
    #[error("the peer breaks the rules of streams: {0}; update the older of the two programs")]
    Protocol(String),
    /// The device reported an error.
    #[error("the device failed: {0}")]
    Verbs(String),
    /// This end reset the stream.
    #[error("this end reset the stream")]
    Reset,
}

/// Error of a read or a write.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// No bytes to read, or no space to write, at present.
    #[error("the stream is not ready")]
    WouldBlock,
    /// The stream broke; bytes that had not arrived are lost.
    #[error("the stream broke: {0}")]
    Reset(Broken),
    /// This end has ended its stream, or the peer no longer reads it.
    #[error("the peer does not read this stream any more")]
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

/// Error of opening a stream.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No process listens at the address, or it does not reply.
    #[error("cannot open a stream to {address} (is a program listening for streams there?)")]
    Unreachable {
        /// Address of the peer.
        address: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// The peer refused the stream.
    #[error("cannot open a stream")]
    Refused(#[from] BootstrapError),
    /// This end refused the parameters of the peer.
    #[error("cannot open a stream")]
    Unusable(#[from] Refusal),
    /// The device reported an error.
    #[error("cannot open a stream")]
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
