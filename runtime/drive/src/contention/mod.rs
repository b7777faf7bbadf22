//! Detection of threads that compete for the processors. A thread that polls then takes the processor from the thread
//! for which it waits.
//!
//! The state is one flag per process, which waiting threads read with one load. A thread that has just polled without
//! success samples the signs that the kernel reports ([`sample_if_due`]), at most one thread of the process every ten
//! milliseconds:
//!
//! - the numbers of runnable threads and of processors of the machine, over several samples (`crowding`);
//! - the time for which the sampling thread waited for a processor, which also detects that the process may use only
//!   some of the processors;
//! - less often, quotas of the control group and time taken by the hypervisor.
//!
//! A sign that the kernel does not report counts as absent.

mod crowding;
mod signs;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::time::Duration;

use farcall_shm::request_short_slice;
use farcall_verbs::{Clock, MonotonicClock, Nanos};

use crowding::Crowding;
pub use signs::excess_threads;
use signs::{Quota, RunDelay, Runnable, Steal};

/// Interval between two samples.
const SAMPLE_PERIOD: Duration = Duration::from_millis(10);
/// Interval between two samples of signs that change slowly or are expensive to read.
const SLOW_SAMPLE_PERIOD: Duration = Duration::from_millis(250);
/// Time for which an exhausted quota counts as contention. A bandwidth period is 100 ms, unless an administrator
/// changed it.
const QUOTA_HOLD: Duration = Duration::from_secs(1);
/// Minimum share of its time that a thread waits for a processor under contention: one in `DELAY_SHARE`.
const DELAY_SHARE: u32 = 6;
/// Minimum mean of such a wait under contention. A wake-up on an idle processor of a virtual machine takes up to about
/// ten microseconds, a time slice of another thread some milliseconds.
const DELAY_MEAN: Duration = Duration::from_micros(200);
/// Minimum share of the time of all processors that the hypervisor takes under contention: one in `STEAL_SHARE`.
const STEAL_SHARE: u32 = 10;

static IS_CONTENDED: AtomicBool = AtomicBool::new(false);
/// Time of the next sample, in nanoseconds of [`clock`].
static DUE_NS: AtomicU64 = AtomicU64::new(0);

fn clock() -> &'static MonotonicClock {
    static CLOCK: OnceLock<MonotonicClock> = OnceLock::new();
    CLOCK.get_or_init(MonotonicClock::new)
}

/// Returns whether threads competed for the processors at the last sample.
#[inline]
fn is_contended() -> bool {
    IS_CONTENDED.load(Ordering::Relaxed)
}

/// Samples the signs of contention if a sample is due. Called by a thread that has just polled without success. Under
/// contention the thread, which will sleep, requests the shortest time slice, so that it receives a reply as soon as
/// with a socket, on whichever processors the two threads run. Returns whether threads compete.
pub fn sample_if_due() -> bool {
    let now = clock().now();
    let due = DUE_NS.load(Ordering::Relaxed);
    let next = (now + SAMPLE_PERIOD).0;
    if now.0 >= due && DUE_NS.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        sample(now);
    }
    let is_contended = is_contended();
    if is_contended {
        request_short_slice();
    }
    is_contended
}

#[cold]
fn sample(now: Nanos) {
    static SAMPLER: OnceLock<Mutex<Sampler>> = OnceLock::new();
    // If a thread is stopped while sampling, other threads do not wait for it.
    let mut sampler = match SAMPLER.get_or_init(|| Mutex::new(Sampler::open())).try_lock() {
        Ok(sampler) => sampler,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let is_contended = sampler.sample(now);
    IS_CONTENDED.store(is_contended, Ordering::Relaxed);
}

/// The sources of the process, and the results of the last slow sample.
struct Sampler {
    runnable: Option<Runnable>,
    crowding: Crowding,
    quota: Option<Quota>,
    steal: Option<Steal>,
    slow_due: Nanos,
    quota_until: Nanos,
    is_stolen: bool,
}

impl Sampler {
    fn open() -> Self {
        Self {
            runnable: Runnable::open(),
            crowding: Crowding::new(),
            quota: Quota::open(),
            steal: Steal::open(),
            slow_due: Nanos(0),
            quota_until: Nanos(0),
            is_stolen: false,
        }
    }

    fn sample(&mut self, now: Nanos) -> bool {
        if now >= self.slow_due {
            self.slow_due = now + SLOW_SAMPLE_PERIOD;
            self.sample_slowly(now);
        }
        let runnable = self.runnable.as_ref().and_then(Runnable::read);
        let is_crowded = runnable.is_some_and(|(threads, cores)| self.crowding.sample(threads, cores));
        // Read even if the result has no effect: the value counts from the last sample.
        let is_late = OwnDelay::is_long(now);
        is_crowded || is_late || self.is_stolen || now < self.quota_until
    }

    fn sample_slowly(&mut self, now: Nanos) {
        if self.quota.as_mut().is_some_and(Quota::was_used_up) {
            self.quota_until = now + QUOTA_HOLD;
        }
        self.is_stolen = self.steal.as_mut().is_some_and(|steal| steal.took_share(STEAL_SHARE));
    }
}

/// Time and number of this thread's waits for a processor, at a sample.
#[derive(Clone, Copy)]
struct OwnDelay {
    at: Nanos,
    delay: RunDelay,
}

impl OwnDelay {
    /// Returns whether this thread's waits since its last sample were long and a large share of the time.
    fn is_long(now: Nanos) -> bool {
        thread_local! {
            static LAST: Cell<Option<OwnDelay>> = const { Cell::new(None) };
        }
        let Some(delay) = RunDelay::of_this_thread() else { return false };
        let current = Self { at: now, delay };
        LAST.replace(Some(current)).is_some_and(|last| current.is_long_since(last))
    }

    fn is_long_since(self, last: Self) -> bool {
        let delay = Duration::from_nanos(self.delay.ns.saturating_sub(last.delay.ns));
        let count = self.delay.count.saturating_sub(last.delay.count).max(1);
        let mean_min = DELAY_MEAN.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        delay >= mean_min && delay * DELAY_SHARE >= self.at.since(last.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_count_if_they_are_a_large_share_of_the_time() {
        let at = |ms: u64, delay_us: u64, count: u64| OwnDelay {
            at: Nanos(ms * 1_000_000),
            delay: RunDelay { ns: delay_us * 1_000, count },
        };
        let last = at(100, 50_000, 10);
        assert!(at(110, 60_000, 11).is_long_since(last) && at(160, 60_000, 60).is_long_since(last));
        assert!(!at(161, 60_000, 11).is_long_since(last), "a small share");
        assert!(!at(110, 60_000, 61).is_long_since(last), "short waits, as of wake-ups");
        assert!(!last.is_long_since(last));
    }

    /// Runs more computing threads than the machine has processors, in addition to this one.
    #[test]
    fn detects_more_computing_threads_than_cores() {
        let stop = AtomicBool::new(false);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..2 * cores {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut sampler = Sampler::open();
            let start = std::time::Instant::now();
            let mut is_contended = false;
            while !is_contended && start.elapsed() < Duration::from_secs(60) {
                is_contended = sampler.sample(clock().now());
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
            let is_shown = sampler.runnable.is_some() || RunDelay::of_this_thread().is_some();
            assert_eq!(is_contended, is_shown);
        });
    }

    #[test]
    fn holds_for_a_while_after_a_quota_was_used_up() {
        let mut sampler = Sampler { runnable: None, quota: None, steal: None, ..Sampler::open() };
        let now = clock().now();
        sampler.quota_until = now + QUOTA_HOLD;
        assert!(sampler.sample(now));
        sampler.quota_until = Nanos(0);
        sampler.is_stolen = true;
        sampler.slow_due = Nanos(u64::MAX);
        assert!(sampler.sample(now));
    }
}
