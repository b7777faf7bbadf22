//! The time stamp counter of x86-64, where it can be relied on.
//!
//! Its rate is measured between the first clock of the process and a look at the time some milliseconds later. Until
//! then clocks ask the system: a process that has just started does not wait for the measurement.

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    /// Time between the two looks at both clocks: a look is accurate to some ten nanoseconds.
    const CALIBRATION: Duration = Duration::from_millis(10);

    /// Both clocks at one moment.
    #[derive(Clone, Copy)]
    struct Moment {
        at: Instant,
        /// The counter just before.
        before: u64,
        /// How much it counted meanwhile.
        apart: u64,
    }

    /// The first moment; `None` if the counter cannot be relied on.
    static ORIGIN: OnceLock<Option<Moment>> = OnceLock::new();
    static IS_CALIBRATING: AtomicBool = AtomicBool::new(false);
    /// The second moment: the counter, and nanoseconds since the first. Written before the rate, and once.
    static ANCHOR_TICK: AtomicU64 = AtomicU64::new(0);
    static ANCHOR_NS: AtomicU64 = AtomicU64::new(0);
    /// Nanoseconds per tick, in 2^-32; 0 until it is known.
    static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);

    /// Invariant (CPUID 8000_0007h, EDX bit 8), and the kernel keeps time by it: so it is the same on all cores.
    fn is_reliable() -> bool {
        let source =
            std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        __cpuid(0x8000_0000).eax >= 0x8000_0007
            && __cpuid(0x8000_0007).edx & 1 << 8 != 0
            && source.is_ok_and(|source| source.trim() == "tsc")
    }

    fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has the instruction, and the kernel that keeps time by it allows it.
        unsafe { _rdtsc() }
    }

    /// The moment with the shortest time between two looks at the counter.
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

    /// Returns the time, and as nanoseconds since the first moment of the process; `None` if there is no reliable
    /// counter.
    pub(in super::super) fn start() -> (Instant, Option<u64>) {
        // First: no start is earlier.
        let origin = origin();
        let start = Instant::now();
        (start, origin.map(|origin| (start - origin.at).as_nanos() as u64))
    }

    /// Nanoseconds since the first moment, by the counter; `None` until its rate is known.
    #[inline]
    pub(in super::super) fn elapsed_ns() -> Option<u64> {
        let ns_per_tick = NS_PER_TICK.load(Ordering::Acquire);
        if ns_per_tick == 0 {
            calibrate();
            return None;
        }
        // Cores agree within nanoseconds; time must not run backwards below the anchor.
        let ticks = ticks().saturating_sub(ANCHOR_TICK.load(Ordering::Relaxed));
        let since_anchor_ns = ((u128::from(ticks) * u128::from(ns_per_tick)) >> 32) as u64;
        Some(ANCHOR_NS.load(Ordering::Relaxed) + since_anchor_ns)
    }

    /// Measures the rate, if it is time for that.
    #[cold]
    fn calibrate() {
        let Some(origin) = origin().filter(|origin| origin.at.elapsed() >= CALIBRATION) else { return };
        // One thread measures; others ask the system meanwhile.
        if IS_CALIBRATING.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = moment();
        let (Some(rate), since) = (rate(origin, now), now.at - origin.at) else { return };
        // The counter before the look at the time: by the counter it is never earlier than the system has said.
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
