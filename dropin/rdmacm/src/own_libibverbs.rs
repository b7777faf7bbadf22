//! Functions that only Farcall's libibverbs has. With the system's, or an older one, they are absent.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use crate::verbs;

type HelperTurn = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void);

type TraceBeganNs = unsafe extern "C" fn() -> u64;
type TraceInside = unsafe extern "C" fn(c_int) -> c_int;

#[derive(Default)]
struct OwnSymbols {
    helper_turn: Option<HelperTurn>,
    trace_began_ns: Option<TraceBeganNs>,
    trace_inside: Option<TraceInside>,
}

fn own_symbols() -> &'static OwnSymbols {
    static OWN: OnceLock<OwnSymbols> = OnceLock::new();
    OWN.get_or_init(|| {
        let Ok(library) = verbs::library() else { return OwnSymbols::default() };
        // SAFETY: the names are ours alone, and always of these types.
        unsafe {
            OwnSymbols {
                helper_turn: library.get(b"farcall_helper_turn\0").ok().map(|found| *found),
                trace_began_ns: library.get(b"farcall_trace_began_ns\0").ok().map(|found| *found),
                trace_inside: library.get(b"farcall_trace_inside\0").ok().map(|found| *found),
            }
        }
    })
}

/// Looks for it now: later, the thread that waits for what arrives must not.
pub fn find() {
    own_symbols();
}

/// Runs a turn of the thread that waits for what arrives. While libibverbs moves registered memory of the program, the
/// turn waits; between its turns the thread writes to nothing but its own stack.
pub fn turn<F: FnMut()>(mut run: F) {
    extern "C" fn call<F: FnMut()>(run: *mut c_void) {
        // SAFETY: the closure below, which waits for this.
        unsafe { (*run.cast::<F>())() }
    }
    match own_symbols().helper_turn {
        // SAFETY: the function gets what it was made for.
        Some(helper_turn) => unsafe { helper_turn(call::<F>, (&raw mut run).cast()) },
        None => run(),
    }
}

/// When the trace of libibverbs began, in nanoseconds of the machine's monotonic clock: 0 if there can be none, `None`
/// if it does not say.
pub fn trace_began_ns() -> Option<u64> {
    // SAFETY: it has no arguments.
    own_symbols().trace_began_ns.map(|began_ns| unsafe { began_ns() })
}

/// Whether libibverbs takes this thread's calls for ours instead of the program's; returns what was.
pub fn hide_verbs(is_hidden: bool) -> bool {
    // SAFETY: it takes a number.
    own_symbols().trace_inside.is_some_and(|inside| unsafe { inside(is_hidden.into()) } != 0)
}
