//! Functions that change handlers of signals.

use std::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};

use super::export;
use crate::{libc_next, signals};

export! {
    fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
        // SAFETY: `handler` is a function of the program's for signals, or a constant; the C library alone uses it.
        let done = unsafe { libc_next::sigaction(signal, action, before) };
        if !action.is_null() {
            signals::after_change();
        }
        done
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: `handler` is a function of the program's for signals, or a constant; the C library alone uses it.
        let before = unsafe { libc_next::signal(signal, handler) };
        signals::after_change();
        before
    }

    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: `handler` is a function of the program's for signals, or a constant; the C library alone uses it.
        let before = unsafe { libc_next::__sysv_signal(signal, handler) };
        signals::after_change();
        before
    }

    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: `handler` is a function of the program's for signals, or a constant; the C library alone uses it.
        let before = unsafe { libc_next::sigset(signal, handler) };
        signals::after_change();
        before
    }

    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
        // SAFETY: no memory is involved.
        let done = unsafe { libc_next::siginterrupt(signal, interrupts) };
        signals::after_change();
        done
    }
}
