//! Functions for Farcall's other libraries in the same process, under a separate version node. These libraries look
//! them up at run time and work without them, because libibverbs may be the system's or of another version. A function
//! here never changes its meaning; a new meaning gets a new name.

use std::ffi::{c_int, c_void};

/// Calls `run(argument)` as a turn of the calling thread. From then on the thread counts as Farcall's own, and not as
/// a thread of the program: see [`farcall_softnic::helper_turn`] for its requirements.
///
/// # Safety
/// `run` must be safe to call with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_helper_turn(run: extern "C" fn(*mut c_void), argument: *mut c_void) {
    farcall_softnic::helper_turn(|| run(argument));
}
farcall_trace::symver!("FARCALL_1", farcall_helper_turn);

/// Returns when the trace began, in nanoseconds of the monotonic clock; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_trace_began_ns() -> u64 {
    farcall_trace::began_ns().unwrap_or(0)
}
farcall_trace::symver!("FARCALL_1", farcall_trace_began_ns);

/// Sets whether the calls of the calling thread are hidden from the trace (`is_inside` is not 0). Returns the previous
/// value.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_trace_inside(is_inside: c_int) -> c_int {
    farcall_trace::set_inside(is_inside != 0).into()
}
farcall_trace::symver!("FARCALL_1", farcall_trace_inside);
