//! Verbs calls as lines, decoded, with times: what `FARCALL_TRACE` shows of a program on the drop-in libibverbs.
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
//! | `names` | words for numbers |

mod argument;
mod attributes;
mod call;
mod line;
mod names;
mod polls;
mod target;
mod work;

pub use argument::{Argument, Hint, Phase, Returned};
pub use call::{Call, note, waits};
pub use line::{Format, Line};
pub use names::QpAttrMask;
pub use polls::EmptyPolls;
pub use target::{FORMAT_VARIABLE, TARGET_VARIABLE, TargetError, is_on};
pub use work::{completions, receives, request, requests};
