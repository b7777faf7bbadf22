//! Measurement: latencies, medians over repetitions, and resources used by processes.

mod allocations;
mod contention;
mod cores;
mod latency;
mod paired;
mod ping_pong;
mod process;
mod schedule;
mod spread;
mod syscalls;

pub use allocations::{CountingAllocator, SharedAllocations, count_allocations, own_allocations};
pub use contention::contention_warning;
pub(crate) use cores::keep_thread_on;
pub use cores::{CoreError, Cores, pin_thread};
pub use latency::{LatencyRecorder, LatencySummary, QUANTILES};
pub use paired::PairedRatio;
#[cfg(feature = "verbs")]
pub(crate) use ping_pong::record_ping_pong;
pub use ping_pong::{RoundTrips, ping_pong};
pub use process::{CpuMeter, Footprint, ProcessError, ResourceLeak, cpu_time, resident_bytes};
pub use schedule::{Schedule, Share};
pub use spread::Spread;
pub use syscalls::{SyscallError, Traced, count_syscalls};
