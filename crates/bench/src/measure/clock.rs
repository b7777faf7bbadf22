//! A clock for single latencies: the time-stamp counter where there is one, calibrated against the system's.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long calibration watches both clocks. At 10 ms the rate is good to a few parts in 100,000.
const CALIBRATION: Duration = Duration::from_millis(10);

/// Reads the processor's counter and turns differences into nanoseconds.
///
/// On x86-64 a reading is one `rdtsc` (about 10 ns); elsewhere the monotonic system clock stands in. The counter
/// must run at a constant rate and alike on all cores, which every x86-64 processor of the last decade grants
/// (`constant_tsc`, `nonstop_tsc`).
#[derive(Debug, Clone, Copy)]
pub struct TscClock {
    ns_per_tick: f64,
}

impl TscClock {
    /// The process's clock. The first call takes 10 ms.
    #[must_use]
    pub fn calibrated() -> Self {
        static CLOCK: OnceLock<TscClock> = OnceLock::new();
        *CLOCK.get_or_init(Self::calibrate)
    }

    fn calibrate() -> Self {
        let (start, start_ticks) = (Instant::now(), ticks());
        while start.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (elapsed_ns, elapsed_ticks) = (start.elapsed().as_nanos() as f64, ticks() - start_ticks);
        Self { ns_per_tick: elapsed_ns / (elapsed_ticks.max(1)) as f64 }
    }

    /// The counter now, in ticks of unstated length.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        ticks()
    }

    /// Nanoseconds between two readings; 0 if `later` is the earlier one.
    #[inline]
    #[must_use]
    pub fn ns_between(&self, earlier: u64, later: u64) -> u64 {
        (later.saturating_sub(earlier) as f64 * self.ns_per_tick) as u64
    }

    /// How many ticks `duration` takes.
    #[must_use]
    pub fn ticks_in(&self, duration: Duration) -> u64 {
        (duration.as_nanos() as f64 / self.ns_per_tick) as u64
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: rdtsc has no precondition; it reads a counter that user space may read under Linux by default.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_inverse_and_never_negative() {
        let clock = TscClock::calibrated();
        let ticks = clock.ticks_in(Duration::from_secs(1));
        assert!(clock.ns_between(0, ticks).abs_diff(1_000_000_000) < 10);
        assert_eq!(clock.ns_between(10, 5), 0);
    }

    #[test]
    fn it_moves_forward() {
        let clock = TscClock::calibrated();
        let first = clock.now();
        std::thread::sleep(Duration::from_millis(1));
        assert!(clock.ns_between(first, clock.now()) >= 900_000);
    }
}
