//! The time stamp counter of x86-64, where it can be relied on.

/// A counter with its rate, counted from a start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    start: u64,
    /// Nanoseconds per tick, in 2^-32.
    ns_per_tick: u64,
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    use super::Counter;

    const CALIBRATION: Duration = Duration::from_millis(5);

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

    /// Both clocks at one moment: the pair with the shortest time between two looks at the counter.
    fn moment() -> (Instant, u64) {
        let look = |_| {
            let before = ticks();
            let at = Instant::now();
            let after = ticks();
            (after - before, at, before + (after - before) / 2)
        };
        let (_, at, tick) = (0..16).map(look).min_by_key(|(apart, ..)| *apart).expect("sixteen looks");
        (at, tick)
    }

    fn ns_per_tick() -> Option<u64> {
        let (from, from_tick) = moment();
        while from.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (to, to_tick) = moment();
        let ns = u128::from((to - from).as_nanos() as u64) << 32;
        let rate = ns.checked_div(u128::from(to_tick.checked_sub(from_tick)?))?;
        u64::try_from(rate).ok().filter(|rate| *rate > 0)
    }

    impl Counter {
        /// Started now; `None` if there is no reliable counter.
        pub(in super::super) fn calibrated() -> Option<Self> {
            static RATE: OnceLock<Option<u64>> = OnceLock::new();
            let ns_per_tick = (*RATE.get_or_init(|| is_reliable().then(ns_per_tick).flatten()))?;
            Some(Self { start: ticks(), ns_per_tick })
        }

        /// Nanoseconds since the start.
        #[inline]
        pub(in super::super) fn elapsed_ns(&self) -> u64 {
            // Cores agree within nanoseconds; time must not run backwards below the start.
            let ticks = ticks().saturating_sub(self.start);
            ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Counter {
    pub(super) fn calibrated() -> Option<Self> {
        None
    }

    pub(super) fn elapsed_ns(&self) -> u64 {
        self.start * self.ns_per_tick
    }
}
