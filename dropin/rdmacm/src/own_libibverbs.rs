//! Functions that only Farcall's libibverbs has. With the system's library, or an older one, they are absent.

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
        // SAFETY: only Farcall's libibverbs exports these names, always with these types.
        unsafe {
            OwnSymbols {
                helper_turn: library.get(b"farcall_helper_turn\0").ok().map(|found| *found),
                trace_began_ns: library.get(b"farcall_trace_began_ns\0").ok().map(|found| *found),
                trace_inside: library.get(b"farcall_trace_inside\0").ok().map(|found| *found),
            }
        }
    })
}

/// Looks up the functions now, because the connection manager's thread must not do so later.
pub fn find() {
    own_symbols();
}

/// Runs a turn of the connection manager's thread. While libibverbs remaps registered memory of the program, the turn
/// waits; between turns the thread writes only to its own stack.
pub fn turn<F: FnMut()>(mut run: F) {
    extern "C" fn call<F: FnMut()>(run: *mut c_void) {
        // SAFETY: `run` points to the closure of the enclosing function, which waits for this call.
        unsafe { (*run.cast::<F>())() }
    }
    match own_symbols().helper_turn {
        // SAFETY: `call::<F>` receives the pointer to `run`, which is of type `F` and outlives the call.
        Some(helper_turn) => unsafe { helper_turn(call::<F>, (&raw mut run).cast()) },
        None => run(),
    }
}

/// Returns when the trace of libibverbs began, in nanoseconds of the monotonic clock: 0 if it cannot trace, `None` if
/// the library does not provide the time.
pub fn trace_began_ns() -> Option<u64> {
    // SAFETY: the function has no arguments and no preconditions.
    own_symbols().trace_began_ns.map(|began_ns| unsafe { began_ns() })
}

/// Sets whether libibverbs attributes this thread's calls to this library instead of the program. Returns the previous
/// value.
pub fn hide_verbs(is_hidden: bool) -> bool {
    // SAFETY: the function takes an integer and has no preconditions.
    own_symbols().trace_inside.is_some_and(|inside| unsafe { inside(is_hidden.into()) } != 0)
}
