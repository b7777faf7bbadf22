//! Errors of calls, and whether the failed call was executed.

use std::time::Duration;

use farcall_link::PlanRefused;
use farcall_link::bootstrap::{BootstrapError, Refusal, RefusalKind};
use farcall_verbs::WcStatus;
use thiserror::Error;

use crate::wire::Status;

/// Whether the handler of a call ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It ran to completion, successfully or not.
    Yes,
    /// It did not run and will not: repeating the call is safe.
    No,
    /// It may have run, at most once.
    Unknown,
}

/// An error returned by a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl HandlerError {
    /// Creates an application's own error. The caller receives `code` (15 bits) and the message.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self { status: Status::application(code), message: message.into() }
    }

    /// Creates the error for a method that does not exist.
    pub fn unknown_method(method: u16) -> Self {
        Self { status: Status::UNKNOWN_METHOD, message: format!("method {method}") }
    }
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Broken {
    /// A work request failed.
    #[error("a work request failed: {0}")]
    Completion(WcStatus),
    /// The bootstrap connection was closed: the peer's process has exited, or it closed the connection.
    #[error("the peer hung up")]
    HungUp,
    /// Over UC and UD: no response arrived for this duration.
    #[error("no response came for {0:?}")]
    Silent(Duration),
    /// The server refused to continue.
    #[error("{0}")]
    Refused(Refusal),
    /// The peer violated the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A verbs call failed.
    #[error("a verbs call failed: {0}")]
    Verbs(String),
    /// There is no connection: the server cannot be reached, or refuses it.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// This side closed the connection.
    #[error("closed")]
    Closed,
    /// The client was inherited by a fork; the connection belongs to the parent process.
    #[error("the client belongs to the process that made it, of which this one is a fork")]
    Forked,
}

/// Why an outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnknownBecause {
    /// The deadline passed after the request was sent.
    #[error("its deadline passed after the request was sent")]
    Deadline,
    /// The server restarted, or forgot the session.
    #[error("the server restarted or forgot the session after the request was sent")]
    ServerRestarted,
    /// The connection was lost and could not be re-established in time.
    #[error("the connection was lost after the request was sent: {0}")]
    Disconnected(Broken),
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The handler refused the call.
    #[error("the handler refused the call (code {code}): {message}")]
    Application {
        /// The handler's code.
        code: u16,
        /// The handler's message.
        message: String,
    },
    /// The server replied with an error of its own; [`Status::executed`] indicates whether the handler ran.
    #[error("{status}: {message}")]
    Server {
        /// The status.
        status: Status,
        /// Details.
        message: String,
    },
    /// The deadline passed before the call was sent. It was not executed.
    #[error("the deadline passed before the call was sent; it was not executed")]
    DeadlineExceeded,
    /// The call was sent, and it is not known whether it was executed.
    #[error("the outcome is unknown: {0}; if the call is idempotent, call again")]
    OutcomeUnknown(UnknownBecause),
    /// The connection was lost before the call was sent.
    #[error("not sent: {0}; connect again")]
    NotSent(Broken),
    /// The request exceeds the server's limit.
    #[error("a request of {len_bytes} bytes; this server takes {max_bytes} at most")]
    RequestTooLarge {
        /// The request's length.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The result exceeds this client's limit. The call was executed.
    #[error("a result of {len_bytes} bytes; this client takes {max_bytes} at most; raise its limit")]
    ResultTooLarge {
        /// The result's length.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The checksum of the result did not match in any of several fetches. The call was executed.
    #[error(
        "the result is corrupt: its checksum did not match in {fetches} fetches; the call was executed; if it is \
         idempotent, call again, and check the memory of both machines"
    )]
    CorruptResult {
        /// How often it was fetched or rewritten.
        fetches: u32,
    },
    /// The window is full: its calls are outstanding, or were cancelled and have no response yet.
    #[error(
        "all {window} calls of the window are outstanding, or abandoned and not answered yet; take completions first"
    )]
    WindowFull {
        /// The window.
        window: usize,
    },
}

impl CallError {
    /// Returns the error for a status other than OK and its text.
    #[cold]
    pub(crate) fn of_status(status: Status, text: &[u8]) -> Self {
        let message = String::from_utf8_lossy(text).into_owned();
        match status.application_code() {
            Some(code) => Self::Application { code, message },
            None => Self::Server { status, message },
        }
    }

    /// Returns whether the handler ran.
    pub const fn executed(&self) -> Executed {
        match self {
            Self::Application { .. } | Self::ResultTooLarge { .. } | Self::CorruptResult { .. } => {
                Executed::Yes
            }
            Self::Server { status, .. } if status.executed() => Executed::Yes,
            Self::OutcomeUnknown(_) => Executed::Unknown,
            _ => Executed::No,
        }
    }
}

/// Why a connection could not be established.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bootstrap address cannot be reached.
    #[error("cannot reach {address} (is the server running?)")]
    Unreachable {
        /// The address.
        address: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] BootstrapError),
    /// The plan cannot be run.
    #[error(transparent)]
    Plan(#[from] PlanRefused),
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The server's welcome does not match the request.
    #[error("the server's welcome is impossible: {0}")]
    BadWelcome(String),
}

impl ConnectError {
    /// Returns whether the server refused because it uses another provider than the client.
    pub fn is_other_provider(&self) -> bool {
        match self {
            Self::Handshake(BootstrapError::Refused(refusal)) => refusal.kind == RefusalKind::Provider,
            _ => false,
        }
    }
}
