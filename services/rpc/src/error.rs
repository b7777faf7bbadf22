//! How a call can fail, and whether it was executed then.

use std::time::Duration;

use farcall_link::PlanRefused;
use farcall_link::bootstrap::{BootstrapError, Refusal, RefusalKind};
use farcall_verbs::WcStatus;
use thiserror::Error;

use crate::wire::Status;

/// Whether the handler ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It ran to its end, well or not.
    Yes,
    /// It did not and will not: calling again is safe.
    No,
    /// It may have run, once at most.
    Unknown,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Broken {
    /// A work request failed.
    #[error("a work request failed: {0}")]
    Completion(WcStatus),
    /// The bootstrap connection hung up: the peer's process is gone or closed it.
    #[error("the peer hung up")]
    HungUp,
    /// Over UC and UD: no response came for so long.
    #[error("no response came for {0:?}")]
    Silent(Duration),
    /// The server refused to go on.
    #[error("{0}")]
    Refused(Refusal),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A verbs call failed.
    #[error("a verbs call failed: {0}")]
    Verbs(String),
    /// There is none: the server cannot be reached, or refuses.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// We closed it.
    #[error("closed")]
    Closed,
    /// The client came to this process by a fork; the connection is the parent's.
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
    /// The connection broke and could not be made again in time.
    #[error("the connection was lost after the request was sent: {0}")]
    Disconnected(Broken),
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The handler refused it.
    #[error("the handler refused the call (code {code}): {message}")]
    Application {
        /// The handler's code.
        code: u16,
        /// The handler's words.
        message: String,
    },
    /// The server answered with an error of its own; [`Status::executed`] says whether the handler ran.
    #[error("{status}: {message}")]
    Server {
        /// Which.
        status: Status,
        /// Details.
        message: String,
    },
    /// The deadline passed before the call was sent. It was not executed.
    #[error("the deadline passed before the call was sent; it was not executed")]
    DeadlineExceeded,
    /// The call was sent, and there is no way to know whether it was executed.
    #[error("the outcome is unknown: {0}; if the call is idempotent, call again")]
    OutcomeUnknown(UnknownBecause),
    /// The connection is lost and the call was never sent.
    #[error("not sent: {0}; connect again")]
    NotSent(Broken),
    /// The request is longer than the server takes.
    #[error("a request of {len_bytes} bytes; this server takes {max_bytes} at most")]
    RequestTooLarge {
        /// The request's length.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The result is longer than this client takes. The call was executed.
    #[error("a result of {len_bytes} bytes; this client takes {max_bytes} at most; raise its limit")]
    ResultTooLarge {
        /// The result's length.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The result's checksum does not match, however often it is fetched. The call was executed.
    #[error(
        "the result is corrupt: its checksum did not match in {fetches} fetches; the call was executed; if it is \
         idempotent, call again, and check the memory of both machines"
    )]
    CorruptResult {
        /// How often it was fetched, or written anew.
        fetches: u32,
    },
    /// As many calls as the window holds are outstanding, or were given up and not answered yet.
    #[error(
        "all {window} calls of the window are outstanding, or given up and not answered yet; take completions first"
    )]
    WindowFull {
        /// The window.
        window: usize,
    },
}

impl CallError {
    /// What a status other than OK and its text mean.
    #[cold]
    pub(crate) fn of_status(status: Status, text: &[u8]) -> Self {
        let message = String::from_utf8_lossy(text).into_owned();
        match status.application_code() {
            Some(code) => Self::Application { code, message },
            None => Self::Server { status, message },
        }
    }

    /// Whether the handler ran.
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

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bootstrap address cannot be reached.
    #[error("cannot reach {address}: {source}; is the server running?")]
    Unreachable {
        /// Which address.
        address: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] BootstrapError),
    /// The plan is not one that runs.
    #[error(transparent)]
    Plan(#[from] PlanRefused),
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The server's answer does not fit our request.
    #[error("the server's welcome is impossible: {0}")]
    BadWelcome(String),
}

impl ConnectError {
    /// Whether the server refused because it serves on another provider than ours.
    pub fn is_other_provider(&self) -> bool {
        match self {
            Self::Handshake(BootstrapError::Refused(refusal)) => refusal.kind == RefusalKind::Provider,
            _ => false,
        }
    }
}
