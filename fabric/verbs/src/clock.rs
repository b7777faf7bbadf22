//! Time of endpoints: a number that the driver passes to them.

mod tsc;

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds since the start of a clock. Only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time `duration` later, at most `Nanos(u64::MAX)`.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        let ns = duration.as_nanos();
        let ns = if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 };
        Self(self.0.saturating_add(ns))
    }

    /// Returns the earlier of two optional times. Endpoints call this in every driver iteration.
    #[must_use]
    #[inline]
    pub fn earlier(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if b < a { b } else { a }),
            (at, None) | (None, at) => at,
        }
    }

    /// Returns the time since `earlier`; zero if `earlier` is later than `self`.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl Sub for Nanos {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A clock. Endpoints do not hold one; their driver does.
pub trait Clock {
    /// Returns the current time, which is never less than an earlier result.
    fn now(&self) -> Nanos;
}

/// The machine's monotonic clock, counted from the creation of this object. It reads the processor's time stamp counter
/// if the kernel uses that counter too, else the vDSO; it never makes a system call. Reading the counter costs half as
/// much as the vDSO, and the clock is read twice per call.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
    /// Counter time at `start`, in nanoseconds since the process's first sample; `None` if there is no reliable
    /// counter.
    counter_start_ns: Option<u64>,
}

impl MonotonicClock {
    /// Creates a clock that starts at zero.
    pub fn new() -> Self {
        let (start, counter_start_ns) = tsc::start();
        Self { start, counter_start_ns }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Nanos {
        let by_counter =
            self.counter_start_ns.and_then(|start_ns| Some(tsc::elapsed_ns()?.saturating_sub(start_ns)));
        Nanos(by_counter.unwrap_or_else(|| self.start.elapsed().as_nanos() as u64))
    }
}

/// A clock that only [`VirtualClock::advance`] moves, for tests and simulation.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Moves the time forward by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.0.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_keeps_the_pace_of_the_systems() {
        let before = Instant::now();
        let clock = MonotonicClock::new();
        let after = Instant::now();
        let mut last = clock.now();
        // The loop runs before and after the calibration of the counter's rate.
        while after.elapsed() < Duration::from_millis(50) {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        // These bounds hold for any delay of this thread; a wrong rate would be off by far more than a tenth.
        let at_least = after.elapsed();
        let ours = clock.now() - Nanos(0);
        let at_most = before.elapsed();
        assert!(
            ours * 10 >= at_least * 9 && ours * 10 <= at_most * 11,
            "{ours:?} not in {at_least:?}..{at_most:?}"
        );
    }

    #[test]
    fn arithmetic_saturates() {
        let clock = VirtualClock::default();
        clock.advance(Duration::from_micros(3));
        assert_eq!(clock.now(), Nanos(3_000));
        assert_eq!(Nanos(u64::MAX) + Duration::from_secs(1), Nanos(u64::MAX));
        assert_eq!(Nanos(5) - Nanos(9), Duration::ZERO);
    }
}
