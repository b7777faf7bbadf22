//! Calls of verbs and of the connection manager as lines, decoded, with times: what `FARCALL_TRACE` shows of a program on the
//! drop-in libibverbs and librdmacm.
//!
//! A [`Call`] is begun before the library does what was asked and ended after it; it is one line, written at once and
//! unbuffered, so that nothing is lost when the program aborts and lines of threads and processes do not mix. Nothing is
//! allocated and nothing locked for it. When nobody asked for a trace, [`is_on`] is all there is.
//!
//! | file | what it holds |
//! |---|---|
//! | `target` | where lines go: the variables, the file |
//! | `line` | one line of text or JSON in a bounded buffer |
//! | `call` | a call from its begin to its end |
//! | `argument`, `attributes`, `work` | how arguments, attributes and work requests look |
//! | `cm` | how identifiers, addresses and events of the connection manager look |
//! | `names`, `cm_names` | words for numbers |

mod argument;
mod attributes;
mod call;
mod cm;
mod cm_names;
mod line;
mod names;
mod polls;
mod target;
mod work;

pub use argument::{Argument, Beside, Hint, Phase, Returned};
pub use call::{Call, note, set_inside, waits};
pub use line::{Format, Line};
pub use names::QpAttrMask;
pub use polls::EmptyPolls;
pub use target::{FORMAT_VARIABLE, TARGET_VARIABLE, TargetError, began_ns, follow, is_on, is_wanted};
pub use work::{completions, receives, request, requests};

/// Runs a function (a closure without arguments) and shows the call; returns from the function around it if nobody looks.
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
