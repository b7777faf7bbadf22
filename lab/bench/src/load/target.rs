//! What the load generator talks to.

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

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The value read.
    Value(&'a [u8]),
    /// There is no such key.
    Absent,
    /// The value was stored.
    Stored,
    /// The service refused the request, which changed nothing.
    Refused,
    /// The request failed, and whether it was executed is unknown.
    Unknown,
}

/// The connection is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The other end closed it, died or cannot be reached.
    #[error("the connection to the key-value service was lost: {0}")]
    Lost(String),
    /// The other end is a new process now, with none of the records; the connection itself was made again.
    #[error("the key-value service restarted")]
    Restarted,
    /// The other end says what the protocol does not allow.
    #[error("the key-value service broke the protocol: {0}")]
    Protocol(String),
    /// The time that the measurement may take has expired.
    #[error("{0}")]
    TimeExpired(String),
}

/// A connection to a key-value service with up to a window of outstanding requests. The caller names each request by
/// a slot below the window, and does not use a slot again before its request ended.
pub trait Target {
    /// Takes a request; it may be sent now or with the next [`Self::flush`].
    ///
    /// # Errors
    /// When the connection is of no use any more; outstanding requests are then forgotten.
    fn submit(&mut self, slot: u32, request: Request<'_>) -> Result<(), TargetError>;

    /// Sends what was taken and is not sent yet.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn flush(&mut self) -> Result<(), TargetError>;

    /// Calls `done` with the slot and the outcome of every request that ended. May block
    /// while requests are outstanding, or return without any.
    ///
    /// # Errors
    /// When the connection is of no use any more; outstanding requests are then forgotten.
    fn poll(&mut self, done: impl FnMut(u32, Outcome<'_>)) -> Result<(), TargetError>;
}
