//! The monotonic clock.

use std::ffi::c_int;

use rustix::time::{ClockId, clock_gettime};

/// Returns the current time in nanoseconds.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the time `timeout_ms` from now in nanoseconds; `None` if it is negative, which means no limit.
pub fn after_ms(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| now_ns() + ms * 1_000_000)
}
