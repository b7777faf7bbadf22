//! The program restricts its system calls.

use std::ffi::{c_int, c_long, c_ulong};

use super::export;
use crate::{confined, real};

/// Returns whether a call of `seccomp` restricts system calls, and does not only inquire.
pub(super) fn restricts(operation: usize) -> bool {
    operation == libc::SECCOMP_SET_MODE_STRICT as usize || operation == libc::SECCOMP_SET_MODE_FILTER as usize
}

export! {
    fn prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            confined::enter();
        }
        // SAFETY: what the arguments are depends on `option`; the kernel alone uses them, and checks pointers.
        unsafe { real::prctl(option, second, third, fourth, fifth) }
    }
}

/// As `prctl`, by number.
pub(super) fn before_prctl(option: c_long) {
    if option == c_long::from(libc::PR_SET_SECCOMP) {
        confined::enter();
    }
}
