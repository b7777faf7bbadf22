//! Interface between the load generator and the services that it measures.

/// One request to a key-value service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Read the value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Store a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The value read.
    Value(&'a [u8]),
    /// There is no such key.
    Absent,
    /// The value was stored.
    Stored,
    /// The service refused the request, which has changed nothing.
    Refused,
    /// The request failed, and whether it was executed is unknown.
    Unknown,
}

/// Error after which a connection cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The other end closed the connection, crashed or cannot be reached.
    #[error("the connection to the key-value service was lost: {0}")]
    Lost(String),
    /// The connection was re-established to a new process, which has none of the records.
    #[error("the key-value service restarted")]
    Restarted,
    /// The other end violated the protocol.
    #[error("the key-value service broke the protocol: {0}")]
    Protocol(String),
    /// The time limit of the measurement has expired.
    #[error("{0}")]
    TimeExpired(String),
}

/// A connection to a key-value service with up to a window of outstanding requests. The caller identifies each request
/// by a slot below the window, and does not reuse a slot before its request has completed.
pub trait Target {
    /// Queues a request, which is sent immediately or by the next [`Self::flush`].
    ///
    /// # Errors
    /// Returns an error if the connection cannot be used any more; outstanding requests are then dropped.
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError>;

    /// Sends all queued requests.
    ///
    /// # Errors
    /// Those of [`Self::submit`].
    fn flush(&mut self) -> Result<(), TargetError>;

    /// Calls `done` with the slot and outcome of every completed request. May block while requests are outstanding, or
    /// return without an outcome.
    ///
    /// # Errors
    /// Returns an error if the connection cannot be used any more; outstanding requests are then dropped.
    fn poll(&mut self, done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError>;
}
