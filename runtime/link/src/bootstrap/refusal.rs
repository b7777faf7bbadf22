//! Reasons for which a handshake fails, in a form that is sent to the peer.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The class of a refusal, on which a program can base a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The bytes belong to another protocol.
    NotThisProtocol,
    /// The bytes violate the protocol.
    Malformed,
    /// A frame is longer than allowed.
    TooLarge,
    /// No common version.
    Version,
    /// The plan is not a point of the preset table, or is a point that the server does not offer.
    Plan,
    /// A number in the request is out of range.
    OutOfRange,
    /// The providers cannot communicate (for example a software RNIC and hardware).
    Provider,
    /// The server is full.
    TooManyConnections,
    /// There is no such server thread.
    NoSuchThread,
    /// The session's secret is wrong.
    WrongSecret,
    /// The server is shutting down.
    GoingAway,
    /// The handshake took too long.
    Timeout,
    /// The server could not create its queue pair or memory.
    Resources,
    /// The peer sent a message that is not allowed at this point.
    OutOfTurn,
    /// Processes of the client's user may not connect.
    NotAdmitted,
}

impl RefusalKind {
    /// Returns a refusal with this class and `reason`.
    pub fn because(self, reason: impl Into<String>) -> Refusal {
        let mut reason = reason.into();
        if let Some((cut, _)) = reason.char_indices().nth(REASON_CHARS_MAX) {
            reason.truncate(cut);
        }
        Refusal { kind: self, reason }
    }

    /// Returns the remedy for the side that was refused.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotThisProtocol => "connect to the bootstrap port of a farcall server",
            Self::Malformed | Self::TooLarge | Self::OutOfTurn => "update the older of the two programs",
            Self::Version => "update the older of the two programs; neighbouring versions work together",
            Self::Plan => "use a preset that it names",
            Self::OutOfRange => "use a number in the range that it names",
            Self::Provider => "use the same provider on both sides",
            Self::TooManyConnections => "close connections, raise the server's limit or use another server",
            Self::NoSuchThread => "use a thread number below the server's count of threads",
            Self::WrongSecret => "open a new session",
            Self::GoingAway => "connect to another server or later",
            Self::Timeout => "try again",
            Self::NotAdmitted => "run both as one user, or let a group of both in (FARCALL_GROUP)",
            Self::Resources => "see the server's log",
        }
    }
}

const REASON_CHARS_MAX: usize = 400;

/// A refusal: class and reason. It is sent in a `Refuse` frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("handshake refused ({kind:?}): {reason}; {}", .kind.remedy())]
pub struct Refusal {
    /// Its class.
    pub kind: RefusalKind,
    /// Its reason, as text for users.
    pub reason: String,
}
