//! What our own libibverbs offers beside the standard's functions. With the system's, or an older one, there is none of it.

use std::ffi::c_void;
use std::sync::OnceLock;

use crate::verbs;

type HelperTurn = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void);

struct Kin {
    helper_turn: Option<HelperTurn>,
}

fn kin() -> &'static Kin {
    static KIN: OnceLock<Kin> = OnceLock::new();
    KIN.get_or_init(|| {
        let Ok(library) = verbs::library() else { return Kin { helper_turn: None } };
        // SAFETY: the name is ours alone, and always of this type.
        let helper_turn = unsafe { library.get::<HelperTurn>(b"farcall_helper_turn\0") };
        Kin { helper_turn: helper_turn.ok().map(|found| *found) }
    })
}

/// Looks for it now: later, the thread that waits for what arrives must not.
pub fn find() {
    kin();
}

/// Runs a turn of the thread that waits for what arrives. While libibverbs moves registered memory of the program, the turn waits;
/// between its turns the thread writes to nothing but its own stack.
pub fn turn<F: FnMut()>(mut run: F) {
    extern "C" fn call<F: FnMut()>(run: *mut c_void) {
        // SAFETY: the closure below, which waits for this.
        unsafe { (*run.cast::<F>())() }
    }
    match kin().helper_turn {
        // SAFETY: the function gets what it was made for.
        Some(helper_turn) => unsafe { helper_turn(call::<F>, (&raw mut run).cast()) },
        None => run(),
    }
}
