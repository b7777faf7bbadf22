//! One trace for both libraries: times count from the same moment, and what this library calls of verbs is no call of the
//! program's.

use std::sync::OnceLock;

use crate::kin;

/// Whether calls are shown; the variables are read once.
pub fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    *IS_ON.get_or_init(|| {
        if !farcall_trace::is_wanted() {
            return false;
        }
        match kin::trace_began_ns() {
            // It has said why.
            Some(0) => return false,
            Some(began_ns) => farcall_trace::follow(began_ns),
            // Another libibverbs: this library's calls are a trace of their own.
            None => {}
        }
        farcall_trace::is_on()
    })
}

/// A call of the program's: while it lives, this thread's calls of libibverbs are not shown.
pub struct Within {
    was_inside: bool,
}

impl Within {
    pub fn begin() -> Self {
        Self { was_inside: kin::hide_verbs(true) }
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        kin::hide_verbs(self.was_inside);
    }
}
