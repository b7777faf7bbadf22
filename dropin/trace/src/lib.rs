//! Traces of verbs and connection manager calls, decoded and with times: the output of `FARCALL_TRACE` for programs
//! that use the drop-in libibverbs and librdmacm.
//!
//! A [`Call`] begins before the library executes the call and ends after it. It is one line, written at once and
//! unbuffered, so that no line is lost when the program aborts, and lines of threads and processes do not mix. It
//! neither allocates memory nor takes a lock. Without a trace a call costs only [`is_on`].
//!
//! | file | contents |
//! |---|---|
//! | `target` | destination of the lines: the variables, the file |
//! | `line` | one line of text or JSON in a bounded buffer |
//! | `call` | a call from its beginning to its end |
//! | `argument`, `values`, `attributes`, `work` | formatting of arguments, attributes and work requests |
//! | `cm` | formatting of identifiers, addresses and events of the connection manager |
//! | `names`, `cm_names` | names of numbers |
//! | `export`, `errno` | how both libraries export functions, and how these report errors |
//! | `events` | waiting for events and their acknowledgement |

mod argument;
mod attributes;
mod call;
mod cm;
mod cm_names;
pub mod errno;
mod events;
mod export;
mod line;
mod names;
mod polls;
mod target;
mod values;
mod work;

pub use argument::{Argument, Hint, OtherArguments, Phase, Returned};
pub use call::{Call, note, set_inside, waits};
pub use events::{Unacknowledged, wait_readable};
pub use export::{Refusal, refuse};
pub use line::{Format, Line};
pub use polls::EmptyPolls;
pub use target::{FORMAT_VARIABLE, TARGET_VARIABLE, TargetError, began_ns, follow, is_on, is_wanted, now_ns};
pub use work::{completions, receives, request, requests};

/// Executes a function (a closure without arguments) and traces the call. Returns from the enclosing function if calls
/// are not traced.
#[macro_export]
macro_rules! trace_call {
    ($name:ident($($arg:ident),*), $run:ident) => {{
        let Some(mut call) = $crate::Call::begin(stringify!($name)) else { return $run() };
        $(call.read_hint(stringify!($arg), $arg);)*
        // SAFETY: arguments satisfy `Argument::format`: they are null or valid by the man page of the call.
        $(unsafe { call.argument(stringify!($arg), $arg) };)*
        call.executes();
        let returned = $run();
        // SAFETY: the function has just returned the value.
        unsafe { call.returned(returned) };
        // SAFETY: arguments satisfy `Argument::format`; only those that the call has filled are read.
        $(unsafe { call.output(stringify!($arg), $arg) };)*
        call.end();
        returned
    }};
}
