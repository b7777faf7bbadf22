//! Calls of verbs and of the connection manager as lines, decoded, with times: what `FARCALL_TRACE` shows of a program
//! on the drop-in libibverbs and librdmacm.
//!
//! A [`Call`] is begun before the library does what was asked and ended after it; it is one line, written at once and
//! unbuffered, so that nothing is lost when the program aborts and lines of threads and processes do not mix. Nothing
//! is allocated and nothing locked for it. Without a trace a call costs [`is_on`] alone.
//!
//! | file | what it holds |
//! |---|---|
//! | `target` | where lines go: the variables, the file |
//! | `line` | one line of text or JSON in a bounded buffer |
//! | `call` | a call from its begin to its end |
//! | `argument`, `attributes`, `work` | how arguments, attributes and work requests look |
//! | `cm` | how identifiers, addresses and events of the connection manager look |
//! | `names`, `cm_names` | words for numbers |
//! | `export`, `errno` | how both libraries export their functions, and how these fail |
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
mod work;

pub use argument::{Argument, Hint, OtherArguments, Phase, Returned};
pub use call::{Call, note, set_inside, waits};
pub use events::{Unacknowledged, wait_readable};
pub use export::{Refusal, refuse};
pub use line::{Format, Line};
pub use polls::EmptyPolls;
pub use target::{FORMAT_VARIABLE, TARGET_VARIABLE, TargetError, began_ns, follow, is_on, is_wanted, now_ns};
pub use work::{completions, receives, request, requests};

/// Runs a function (a closure without arguments) and shows the call; returns from the function around it if calls are
/// not shown.
#[macro_export]
macro_rules! shown {
    ($name:ident($($arg:ident),*), $run:ident) => {{
        let Some(mut call) = $crate::Call::begin(stringify!($name)) else { return $run() };
        $(call.look(stringify!($arg), $arg);)*
        // SAFETY: the arguments are what the man page asks for, or null.
        $(unsafe { call.argument(stringify!($arg), $arg) };)*
        call.executes();
        let returned = $run();
        // SAFETY: what the function returned.
        unsafe { call.returned(returned) };
        // SAFETY: as above; only what the call filled is looked at.
        $(unsafe { call.output(stringify!($arg), $arg) };)*
        call.end();
        returned
    }};
}
