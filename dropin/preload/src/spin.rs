//! Time for which a thread polls without success before it sleeps, determined as `farcall-drive` does for endpoints
//! (RR-Compound, algorithm 2), without the code that that package would add to every program. Twice the usual wait, at
//! most about what a sleep and a wake-up cost; half as long after each wait that was longer; not at all where runnable
//! threads exceed cores.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{self, Mode, OFlags};

use crate::{clock, own_fds};

const LONGEST_NS: u64 = 50_000;
/// A shorter limit means no polling.
const SHORTEST_NS: u64 = 1_000;
/// Number of waits per wait that polls although recent waits were too long: they may have become short.
const TRY_EVERY: u32 = 64;
/// Number of polls between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 16;

#[derive(Clone, Copy)]
struct Estimate {
    limit_ns: u64,
    usual_ns: u64,
    waits: u32,
}

thread_local! {
    static ESTIMATE: Cell<Estimate> =
        const { Cell::new(Estimate { limit_ns: LONGEST_NS, usual_ns: LONGEST_NS / 2, waits: 0 }) };
}

/// One wait of this thread.
pub struct SpinPolicy {
    began_ns: u64,
    until_ns: u64,
    polls: u32,
}

impl SpinPolicy {
    /// Begins.
    pub fn begin() -> Self {
        let began_ns = clock::now_ns();
        let mut estimate = ESTIMATE.get();
        estimate.waits = estimate.waits.wrapping_add(1);
        ESTIMATE.set(estimate);
        let is_tried = estimate.limit_ns >= SHORTEST_NS || estimate.waits.is_multiple_of(TRY_EVERY);
        let limit_ns = if estimate.limit_ns >= SHORTEST_NS { estimate.limit_ns } else { LONGEST_NS };
        let spins = is_tried && !runnable_exceed_cores(began_ns);
        Self { began_ns, until_ns: if spins { began_ns + limit_ns } else { began_ns }, polls: 0 }
    }

    /// Called after an empty poll: returns whether to poll again.
    pub fn should_spin(&mut self) -> bool {
        std::hint::spin_loop();
        self.polls += 1;
        if self.until_ns == self.began_ns {
            return false;
        }
        !self.polls.is_multiple_of(POLLS_PER_CLOCK) || clock::now_ns() < self.until_ns
    }

    /// Called when the wait has ended: records its length.
    pub fn on_success(self) {
        let waited_ns = clock::now_ns() - self.began_ns;
        let mut estimate = ESTIMATE.get();
        if waited_ns > LONGEST_NS {
            estimate.limit_ns /= 2;
        } else {
            estimate.usual_ns = (estimate.usual_ns * 7 + waited_ns) / 8;
            estimate.limit_ns = (estimate.usual_ns * 2).clamp(SHORTEST_NS, LONGEST_NS);
        }
        ESTIMATE.set(estimate);
    }
}

/// Period for which a sample is used.
const SAMPLE_PERIOD_NS: u64 = 10_000_000;

/// Returns whether more threads are runnable than the machine has cores, as of at most some milliseconds ago.
fn runnable_exceed_cores(now_ns: u64) -> bool {
    static SAMPLED_NS: AtomicU64 = AtomicU64::new(0);
    static EXCEED: AtomicBool = AtomicBool::new(false);
    let sampled = SAMPLED_NS.load(Relaxed);
    if now_ns.saturating_sub(sampled) >= SAMPLE_PERIOD_NS
        // One thread takes the sample.
        && SAMPLED_NS.compare_exchange(sampled, now_ns, Relaxed, Relaxed).is_ok()
    {
        EXCEED.store(sample().is_some_and(|(runnable, cores)| runnable > cores), Relaxed);
    }
    EXCEED.load(Relaxed)
}

/// Threads that run or could, and cores that are on line; both of the machine.
fn sample() -> Option<(i64, i64)> {
    static FILE: OnceLock<Option<RawFd>> = OnceLock::new();
    let open =
        || own_fds::adopt(fs::open("/proc/loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?);
    let file: c_int = (*FILE.get_or_init(open))?;
    if !own_fds::is_own(file) {
        return None;
    }
    let mut text = [0; 128];
    let len = rustix::io::pread(own_fds::borrow(file), &mut text, 0).ok()?;
    // "0.20 0.18 0.12 1/80 11206"
    let running = std::str::from_utf8(&text[..len]).ok()?.split(' ').nth(3)?.split('/').next()?;
    // SAFETY: returns a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    Some((running.parse().ok()?, cores))
}
