//! Fork (`man ibv_fork_init`). The software RNIC pins nothing: a child has its own copy of everything, and must not use
//! what it inherited.

use std::ffi::{c_int, c_void};

use crate::symbols::export;

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

export! {
    "IBVERBS_1.1" {
        /// `man ibv_fork_init`.
        fn ibv_fork_init() -> c_int {
            0
        }

        /// Keeps a range out of children: not needed.
        fn ibv_dontfork_range(_base: *mut c_void, _len_bytes: usize) -> c_int {
            0
        }

        /// The reverse.
        fn ibv_dofork_range(_base: *mut c_void, _len_bytes: usize) -> c_int {
            0
        }
    }
    "IBVERBS_1.13" {
        /// `man ibv_is_fork_initialized`.
        fn ibv_is_fork_initialized() -> c_int {
            UNNEEDED
        }
    }
}
