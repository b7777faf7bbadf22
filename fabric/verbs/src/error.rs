//! Errors of calls. Errors of work requests are [`crate::WcStatus`].
//!
//! The message of an error of this workspace does not include its source, which `source()` returns. [`with_sources`]
//! returns both.

use std::error::Error as StdError;
use std::fmt;

use thiserror::Error;

/// The result of a verbs call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a verbs call. Each variant names the operation and the object; the message ends with a remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks a rule of the specification or a limit of the device.
    #[error("{operation}: {what}")]
    InvalidArgument {
        /// Name of the call.
        operation: &'static str,
        /// The argument, the reason, and the accepted values.
        what: String,
    },
    /// The object is not in a state that allows the call.
    #[error("{operation}: {object} is in state {state}; {remedy}")]
    InvalidState {
        /// Name of the call.
        operation: &'static str,
        /// The object.
        object: String,
        /// Its state.
        state: String,
        /// Remedy.
        remedy: &'static str,
    },
    /// The device or this provider cannot do it.
    #[error("{operation}: not supported by {provider}: {what}")]
    Unsupported {
        /// Name of the call.
        operation: &'static str,
        /// Name of the provider.
        provider: &'static str,
        /// The unsupported feature, and an alternative.
        what: String,
    },
    /// A queue or a table is full, or a limit is reached.
    #[error("{operation}: {what} exhausted (limit {limit}); {remedy}")]
    Exhausted {
        /// Name of the call.
        operation: &'static str,
        /// The exhausted resource.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// Remedy.
        remedy: &'static str,
    },
    /// The peer did not reply, has exited, or violated the protocol.
    #[error("{operation}: peer {peer}: {what}")]
    Peer {
        /// Name of the call.
        operation: &'static str,
        /// The peer.
        peer: String,
        /// Description of the failure, and a remedy.
        what: String,
    },
    /// A system call failed.
    #[error("{operation}: {what}")]
    Os {
        /// Name of the call.
        operation: &'static str,
        /// The request to the system, and the remedy.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Returns the name of the call that failed.
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

    /// Creates an [`Error::InvalidArgument`].
    pub fn invalid(operation: &'static str, what: impl Into<String>) -> Self {
        Self::InvalidArgument { operation, what: what.into() }
    }

    /// Creates an [`Error::Os`].
    pub fn os(operation: &'static str, what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Os { operation, what: what.into(), source: source.into() }
    }
}

/// Returns the messages of an error and its sources: see [`WithSources`].
pub fn with_sources(error: &dyn StdError) -> String {
    WithSources(error).to_string()
}

/// Displays an error and its sources, separated by colons: for the places that show an error to users, or pass it on as
/// text. A source that the text contains already is left out, because errors of other libraries may include theirs.
pub struct WithSources<'a>(pub &'a dyn StdError);

impl fmt::Display for WithSources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let message = error.to_string();
            if !text.contains(&message) {
                text.push_str(": ");
                text.push_str(&message);
            }
            source = error.source();
        }
        f.write_str(&text)
    }
}

/// Error of a post. As with `bad_wr`, all requests before the refused one are posted.
#[derive(Debug, Error)]
#[error("work request {posted} of the batch was refused")]
pub struct PostError {
    /// Number of requests of the batch that were posted, which is the index of the refused one.
    pub posted: usize,
    /// Error of the refused request. It is boxed so that the result of a post fits into two registers; a result
    /// returned through memory made a SEND 10 % slower.
    #[source]
    pub source: Box<Error>,
}

impl PostError {
    /// Creates the error for a batch whose request at index `posted` was refused.
    #[cold]
    pub fn new(posted: usize, source: Error) -> Self {
        Self { posted, source: Box::new(source) }
    }

    /// Posts requests in order until one is refused, for providers.
    ///
    /// # Errors
    /// Returns the error of the refused request and the number of requests posted before it.
    #[inline]
    pub fn in_order<W>(wrs: &[W], mut post: impl FnMut(usize, &W) -> Result<()>) -> Result<(), Self> {
        for (posted, wr) in wrs.iter().enumerate() {
            post(posted, wr).map_err(|source| Self::new(posted, source))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn returns_each_message_once() {
        let full =
            || Error::os("create CQ", "a completion channel", io::Error::other("no descriptor is left"));
        let error = PostError::new(2, full());
        assert_eq!(error.to_string(), "work request 2 of the batch was refused");
        assert_eq!(
            with_sources(&error),
            "work request 2 of the batch was refused: create CQ: a completion channel: no descriptor is left"
        );
        // An `io::Error` displays the error that it contains, and its source is that of the contained one.
        assert_eq!(with_sources(&io::Error::other(full())), with_sources(&full()));
    }
}
