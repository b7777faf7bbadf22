//! Errors of calls (not of work requests: those are [`crate::WcStatus`]).

use thiserror::Error;

/// The result of a verbs call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verbs call failed. Each names the object and the operation; the text ends with what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks a rule of the specification or a limit of the device.
    #[error("{operation}: {what}")]
    InvalidArgument {
        /// The call.
        operation: &'static str,
        /// Which argument, why, and what would be accepted.
        what: String,
    },
    /// The object is not in a state that allows the call.
    #[error("{operation}: {object} is in state {state}; {remedy}")]
    InvalidState {
        /// The call.
        operation: &'static str,
        /// Which object.
        object: String,
        /// Its state.
        state: String,
        /// What to do first.
        remedy: &'static str,
    },
    /// The device or this provider cannot do it.
    #[error("{operation}: not supported by {provider}: {what}")]
    Unsupported {
        /// The call.
        operation: &'static str,
        /// Which provider.
        provider: &'static str,
        /// What exactly, and what to use instead.
        what: String,
    },
    /// A queue or a table is full, or a limit is reached.
    #[error("{operation}: {what} exhausted (limit {limit}); {remedy}")]
    Exhausted {
        /// The call.
        operation: &'static str,
        /// What ran out.
        what: &'static str,
        /// How many there are.
        limit: u64,
        /// How to get more.
        remedy: &'static str,
    },
    /// The peer did not answer, died, or answered against the protocol.
    #[error("{operation}: peer {peer}: {what}")]
    Peer {
        /// The call.
        operation: &'static str,
        /// Which peer.
        peer: String,
        /// What happened and what to do.
        what: String,
    },
    /// The operating system refused something.
    #[error("{operation}: {what}: {source}")]
    Os {
        /// The call.
        operation: &'static str,
        /// What was asked of the system, and the remedy.
        what: String,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The call that failed.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::InvalidArgument { operation, .. }
            | Self::InvalidState { operation, .. }
            | Self::Unsupported { operation, .. }
            | Self::Exhausted { operation, .. }
            | Self::Peer { operation, .. }
            | Self::Os { operation, .. } => operation,
        }
    }

    /// An [`Error::InvalidArgument`].
    pub fn invalid(operation: &'static str, what: impl Into<String>) -> Self {
        Self::InvalidArgument { operation, what: what.into() }
    }

    /// An [`Error::Os`].
    pub fn os(operation: &'static str, what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Os { operation, what: what.into(), source: source.into() }
    }
}

/// Why posting stopped: as with `bad_wr`, everything before the refused request is posted.
#[derive(Debug, Error)]
#[error("work request {posted} of the batch: {source}")]
pub struct PostError {
    /// How many requests of the batch were posted; the index of the refused one.
    pub posted: usize,
    /// Why it was refused. Boxed, so that the result of a post fits into two registers: copied through memory it made
    /// a SEND a tenth slower.
    #[source]
    pub source: Box<Error>,
}

impl PostError {
    /// The request after the first `posted` ones was refused.
    #[cold]
    pub fn new(posted: usize, source: Error) -> Self {
        Self { posted, source: Box::new(source) }
    }

    /// Posts requests in order until one is refused, for providers.
    ///
    /// # Errors
    /// That of the refused request.
    #[inline]
    pub fn in_order<W>(wrs: &[W], mut post: impl FnMut(usize, &W) -> Result<()>) -> Result<(), Self> {
        for (posted, wr) in wrs.iter().enumerate() {
            post(posted, wr).map_err(|source| Self::new(posted, source))?;
        }
        Ok(())
    }
}
