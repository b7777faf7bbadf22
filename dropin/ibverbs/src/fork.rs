//! Fork (`man ibv_fork_init`). The software RNIC pins no memory. A child has its own copy of everything, and must not
//! use inherited objects.

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

        /// Excludes a range from children: not needed.
        fn ibv_dontfork_range(_base: *mut c_void, _len_bytes: usize) -> c_int {
            0
        }

        /// Reverses `ibv_dontfork_range`.
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
