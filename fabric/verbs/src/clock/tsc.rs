//! The time stamp counter of x86-64, if it is reliable.
//!
//! The rate of the counter is measured between the creation of the first clock of the process and a sample taken some
//! milliseconds later. Until then clocks read the system's time, so that a process that has just started does not wait
//! for the measurement.

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// Minimum time between the two samples of both clocks. A sample is accurate to some ten nanoseconds.
    const CALIBRATION: Duration = Duration::from_millis(10);

    /// A sample of both clocks.
    #[derive(Clone, Copy)]
    struct Moment {
        at: Instant,
        /// Counter value just before `at` was read.
        before: u64,
        /// Increase of the counter while `at` was read.
        apart: u64,
    }

    /// The first sample; `None` if the counter is not reliable.
    static ORIGIN: OnceLock<Option<Moment>> = OnceLock::new();
    static IS_CALIBRATING: AtomicBool = AtomicBool::new(false);
    /// The second sample: the counter value, and the nanoseconds since the first sample. Written once, before the rate.
    static ANCHOR_TICK: AtomicU64 = AtomicU64::new(0);
    static ANCHOR_NS: AtomicU64 = AtomicU64::new(0);
    /// Nanoseconds per tick, in units of 2^-32; 0 until the rate is known.
    static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);

    /// Returns whether the counter is invariant (CPUID 8000_0007h, EDX bit 8) and is the kernel's clock source, which
    /// means that it is synchronised on all cores.
    fn is_reliable() -> bool {
        let source =
            std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        __cpuid(0x8000_0000).eax >= 0x8000_0007
            && __cpuid(0x8000_0007).edx & 1 << 8 != 0
            && source.is_ok_and(|source| source.trim() == "tsc")
    }

    fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has the instruction. `is_reliable` found that the kernel uses the counter as
        // its clock source; the vDSO then reads it in user mode, so the kernel has not disabled it there.
        unsafe { _rdtsc() }
    }

    /// Takes several samples and returns the one with the shortest time between its two readings of the counter.
    fn moment() -> Moment {
        let look = || {
            let before = ticks();
            let at = Instant::now();
            Moment { at, before, apart: ticks().saturating_sub(before) }
        };
        let mut best = look();
        for _ in 1..16 {
            let next = look();
            if next.apart < best.apart {
                best = next;
            }
        }
        best
    }

    fn origin() -> Option<Moment> {
        *ORIGIN.get_or_init(|| is_reliable().then(moment))
    }

    /// Returns the current time, also as nanoseconds since the first sample of the process; the latter is `None` if
    /// there is no reliable counter.
    pub(in super::super) fn start() -> (Instant, Option<u64>) {
        // The first sample is taken before the time is read, so no start is earlier than it.
        let origin = origin();
        let start = Instant::now();
        (start, origin.map(|origin| (start - origin.at).as_nanos() as u64))
    }

    /// Returns the nanoseconds since the first sample, by the counter; `None` until the counter's rate is known.
    #[inline]
    pub(in super::super) fn elapsed_ns() -> Option<u64> {
        let ns_per_tick = NS_PER_TICK.load(Ordering::Acquire);
        if ns_per_tick == 0 {
            calibrate();
            return None;
        }
        // Counters of different cores agree within nanoseconds; the saturation keeps the time from running backwards
        // below the anchor.
        let ticks = ticks().saturating_sub(ANCHOR_TICK.load(Ordering::Relaxed));
        let since_anchor_ns = ((u128::from(ticks) * u128::from(ns_per_tick)) >> 32) as u64;
        Some(ANCHOR_NS.load(Ordering::Relaxed) + since_anchor_ns)
    }

    /// Measures the rate if [`CALIBRATION`] has passed since the first sample.
    #[cold]
    fn calibrate() {
        let Some(origin) = origin().filter(|origin| origin.at.elapsed() >= CALIBRATION) else { return };
        // One thread measures; other threads read the system's time in the meantime.
        if IS_CALIBRATING.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = moment();
        let (Some(rate), since) = (rate(origin, now), now.at - origin.at) else { return };
        // The anchor uses the counter value from before the system's time was read. Hence the counter's time is never
        // earlier than a time that the system has returned.
        ANCHOR_TICK.store(now.before, Ordering::Relaxed);
        ANCHOR_NS.store(since.as_nanos() as u64, Ordering::Relaxed);
        NS_PER_TICK.store(rate, Ordering::Release);
    }

    fn rate(from: Moment, to: Moment) -> Option<u64> {
        let middle = |moment: Moment| moment.before + moment.apart / 2;
        let ns = (to.at - from.at).as_nanos() << 32;
        let rate = ns.checked_div(u128::from(middle(to).checked_sub(middle(from))?))?;
        u64::try_from(rate).ok().filter(|rate| *rate > 0)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use std::time::Instant;

    pub(in super::super) fn start() -> (Instant, Option<u64>) {
        (Instant::now(), None)
    }

    pub(in super::super) fn elapsed_ns() -> Option<u64> {
        None
    }
}

pub(super) use imp::{elapsed_ns, start};
