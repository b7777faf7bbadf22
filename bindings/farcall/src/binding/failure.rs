//! Failures of all services, for languages without the error types of Rust.

use std::io::{self, ErrorKind};

use farcall_kv::client::{Change, KvConnectError, KvError};
use farcall_rpc::{CallError, ConnectError, Executed, ServerError};
use farcall_stream::OpenError;
use farcall_verbs::with_sources;

use super::Code;

/// A failure: its code and its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of the failure.
    pub code: Code,
    /// Description: the operation, the object, the cause, and a remedy.
    pub message: String,
    /// The error code of the handler with [`Code::Application`], otherwise 0.
    pub application_code: u16,
}

impl Failure {
    /// Creates a failure with a description.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), application_code: 0 }
    }

    /// Creates a failure for an invalid argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::Invalid, message)
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::new(code, code.text().to_string_lossy())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let code = match &error {
            CallError::Application { code, .. } => {
                return Self {
                    application_code: *code,
                    ..Self::new(Code::Application, with_sources(&error))
                };
            }
            CallError::DeadlineExceeded => Code::DeadlineExceeded,
            CallError::NotSent(_) => Code::NotSent,
            CallError::RequestTooLarge { .. } => Code::TooLarge,
            // The code of an error without a number of its own still indicates whether the call was executed.
            other => match other.executed() {
                Executed::Yes => Code::ResultLost,
                Executed::No => Code::NotExecuted,
                Executed::Unknown => Code::OutcomeUnknown,
            },
        };
        Self::new(code, with_sources(&error))
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        let code = match error {
            KvError::Call(error) => return error.into(),
            KvError::Key(_) => Code::Key,
            KvError::Moved(_) => Code::Moved,
            KvError::ValueTooLarge { .. } => Code::TooLarge,
            KvError::OutOfMemory => Code::StoreFull,
            KvError::NotANumber => Code::NotANumber,
            _ => Code::ResultLost,
        };
        Self::new(code, with_sources(&error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let code = match &error {
            ConnectError::Unreachable { .. } => Code::Unreachable,
            ConnectError::Verbs(_) => Code::Device,
            ConnectError::Plan(_) => Code::Invalid,
            _ => Code::Refused,
        };
        Self::new(code, with_sources(&error))
    }
}

impl From<KvConnectError> for Failure {
    fn from(error: KvConnectError) -> Self {
        let message = with_sources(&error);
        match error {
            KvConnectError::Device(error) => error.into(),
            KvConnectError::Unreachable { source, .. } => Self { message, ..source.into() },
            _ => Self::new(Code::Refused, message),
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let code = match error {
            ServerError::Verbs(_) => Code::Device,
            _ => Code::System,
        };
        Self::new(code, with_sources(&error))
    }
}

impl From<farcall_verbs::Error> for Failure {
    fn from(error: farcall_verbs::Error) -> Self {
        Self::new(Code::Device, with_sources(&error))
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let code = match &error {
            OpenError::Unreachable { .. } => Code::Unreachable,
            OpenError::Verbs(_) => Code::Device,
            _ => Code::Refused,
        };
        Self::new(code, with_sources(&error))
    }
}

/// Errors of streams and listeners.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::WouldBlock => Code::WouldBlock,
            ErrorKind::TimedOut => Code::TimedOut,
            ErrorKind::ConnectionReset => Code::Reset,
            ErrorKind::BrokenPipe => Code::BrokenPipe,
            ErrorKind::InvalidInput => Code::Invalid,
            _ => Code::System,
        };
        Self::new(code, with_sources(&error))
    }
}

/// Returns the version of an item after a change.
///
/// # Errors
/// If the condition of the change did not hold.
pub fn version(change: Change) -> Result<u64, Failure> {
    Err(match change {
        Change::Done { version } => return Ok(version),
        Change::NotFound => Code::NotFound,
        Change::NotStored => Code::NotStored,
        Change::OtherVersion => Code::OtherVersion,
    }
    .into())
}

#[cfg(test)]
mod tests {
    use farcall_rpc::wire::Status;
    use farcall_rpc::{Broken, UnknownBecause};

    use super::*;

    /// Programs decide by the code whether they may repeat a call.
    #[test]
    fn a_number_says_of_execution_what_the_error_says() {
        let server = |status| CallError::Server { status, message: String::new() };
        let errors = [
            CallError::Application { code: 7, message: "no".into() },
            server(Status::UNKNOWN_METHOD),
            server(Status::PANICKED),
            server(Status::DEADLINE_EXCEEDED),
            server(Status::GOING_AWAY),
            server(Status::RESULT_TOO_LARGE),
            CallError::DeadlineExceeded,
            CallError::OutcomeUnknown(UnknownBecause::Deadline),
            CallError::NotSent(Broken::HungUp),
            CallError::RequestTooLarge { len_bytes: 2, max_bytes: 1 },
            CallError::ResultTooLarge { len_bytes: 2, max_bytes: 1 },
            CallError::CorruptResult { fetches: 3 },
            CallError::WindowFull { window: 1 },
        ];
        for error in errors {
            let failure = Failure::from(error.clone());
            assert_eq!(failure.code.executed(), error.executed(), "{error:?}");
            assert_eq!(failure.message, error.to_string());
        }
        assert_eq!(
            Failure::from(CallError::Application { code: 7, message: String::new() }).application_code,
            7
        );
    }
}
