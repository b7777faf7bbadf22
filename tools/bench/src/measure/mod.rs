//! Measuring: latencies, medians over repetitions, and what a process costs the machine.

mod allocations;
mod cores;
mod latency;
mod paired;
mod ping_pong;
mod process;
mod spread;
mod syscalls;

pub use allocations::{CountingAllocator, SharedAllocations, count_allocations, own_allocations};
pub use cores::{CoreError, Cores, pin_thread};
pub use latency::{LatencyRecorder, LatencySummary, QUANTILES};
pub use paired::PairedRatio;
pub use ping_pong::{RoundTrips, ping_pong};
pub use process::{CpuMeter, Footprint, ProcessError, ResourceLeak, cpu_time};
pub use spread::Spread;
pub use syscalls::{SyscallError, Traced, count_syscalls};
