//! Outcomes of calls.

use std::fmt;

/// A response's status. Numbers from 0x8000 belong to applications.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, executed $executed:ident, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Describes the status for users.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self(APPLICATION_FIRST..) => "the handler refused the call",
                    _ => "a status that this version does not know",
                }
            }

            /// Returns whether the handler ran. An unknown status counts as executed, because the handler may have
            /// run.
            pub const fn executed(self) -> bool {
                match self { $(Self::$name => $executed,)* _ => true }
            }
        }
    };
}

const APPLICATION_FIRST: u16 = 0x8000;

statuses! {
    /// The call succeeded.
    OK = 0, executed true, "done";
    /// No handler for the method.
    UNKNOWN_METHOD = 1, executed true, "the server has no such method";
    /// The handler panicked.
    PANICKED = 2, executed true, "the handler panicked; what it changed before is not undone";
    /// The deadline had passed before execution.
    DEADLINE_EXCEEDED = 3, executed false, "the deadline had passed before the server could execute the call";
    /// The request exceeds the server's limit.
    REQUEST_TOO_LARGE = 4, executed false,
        "the request is longer than the server accepts; send less or raise its limit";
    /// The result exceeds the server's limit.
    RESULT_TOO_LARGE = 5, executed true, "the result is longer than the server gives; ask for less or raise its limit";
    /// The server has no memory for the result.
    OVERLOADED = 6, executed false, "the server holds too many results for this client; fetch them first";
    /// The server is draining.
    GOING_AWAY = 7, executed false, "the server is shutting down; call another one or later";
    /// The message violates the protocol.
    BAD_REQUEST = 8, executed false, "the message breaks the protocol; the connection is closed";
    /// The message belongs to another session or another incarnation of the server.
    WRONG_SESSION = 9, executed false, "the message is of another session or incarnation; the connection is closed";
    /// The client had cancelled the call.
    CANCELLED = 10, executed false, "the call had been abandoned";
    /// The client requested the rest of a result that the server does not store.
    RESULT_GONE = 11, executed true, "the rest of the result is no longer there";
    /// The handler answers later: the client collects the result. This is not an outcome.
    DEFERRED = 12, executed true, "the call is answered later";
    /// The handler wanted to defer the call, but the server accepts no more deferred calls.
    NOT_DEFERRED = 13, executed true,
        "the handler wanted to answer later, which is not possible; call again when fewer calls are outstanding";
    /// The handler dropped the call without an answer.
    ANSWER_DROPPED = 14, executed true,
        "the handler dropped the call without an answer; what it changed before is not undone";
    /// The client's method with this number is a different one.
    OTHER_METHOD = 15, executed false, "the client's method is another one than the server's";
    /// The server cannot decode the arguments.
    BAD_ARGUMENTS = 16, executed false, "the server cannot decode the arguments";
    /// The server cannot encode the result.
    BAD_RESULT = 17, executed true, "the server cannot encode the result";
    /// The client requested a page of a stream that the server does not store.
    STREAM_GONE = 18, executed true, "the stream of results is no longer there; begin it again";
}

impl Status {
    /// Returns an application's status: `code` with the top bit set.
    pub const fn application(code: u16) -> Self {
        Self(code | APPLICATION_FIRST)
    }

    /// Returns the application's code if this is an application's status.
    pub const fn application_code(self) -> Option<u16> {
        if self.0 >= APPLICATION_FIRST { Some(self.0 & !APPLICATION_FIRST) } else { None }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x}: {})", self.0, self.meaning())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning())
    }
}
