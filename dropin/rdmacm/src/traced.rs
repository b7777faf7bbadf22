//! A common trace for both libraries: times have the same origin, and calls from this library to libibverbs do not
//! count as calls by the program.

use std::sync::Once;

use crate::own_libibverbs;

/// A call by the program: while it exists, this thread's calls of libibverbs are not traced.
pub struct Within {
    was_inside: bool,
}

/// If calls are traced, hides this thread's calls of libibverbs; for [`farcall_trace::export`].
pub fn begin() -> Option<Within> {
    static JOINED: Once = Once::new();
    JOINED.call_once(|| {
        if farcall_trace::is_wanted()
            && let Some(began_ns) = own_libibverbs::trace_began_ns()
        {
            farcall_trace::follow(began_ns);
        }
    });
    farcall_trace::is_on().then(|| Within { was_inside: own_libibverbs::hide_verbs(true) })
}

impl Drop for Within {
    fn drop(&mut self) {
        own_libibverbs::hide_verbs(self.was_inside);
    }
}
