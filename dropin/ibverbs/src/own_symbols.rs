//! Functions for Farcall's other libraries in the same process, under a version node of our own. They look for them at
//! run time and do without them: libibverbs may be the system's, or of another version. A function here never changes
//! its meaning; a new meaning gets a new name.

use std::ffi::{c_int, c_void};

/// Calls `run(argument)` as a turn of the calling thread, which from then on counts as Farcall's own and not as the
/// program's: see [`farcall_softnic::helper_turn`] for what it must keep to.
///
/// # Safety
/// `run` must be callable with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_helper_turn(run: extern "C" fn(*mut c_void), argument: *mut c_void) {
    farcall_softnic::helper_turn(|| run(argument));
}
farcall_trace::symver!("FARCALL_1", farcall_helper_turn);

/// When the trace began, in nanoseconds of the machine's monotonic clock; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_trace_began_ns() -> u64 {
    farcall_trace::began_ns().unwrap_or(0)
}
farcall_trace::symver!("FARCALL_1", farcall_trace_began_ns);

/// From now on what the calling thread calls is not shown (`is_inside` is not 0), or is again. Returns what was before.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_trace_inside(is_inside: c_int) -> c_int {
    farcall_trace::set_inside(is_inside != 0).into()
}
farcall_trace::symver!("FARCALL_1", farcall_trace_inside);
