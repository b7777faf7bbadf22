//! Measuring: latencies, medians over repetitions, and what a process costs the machine.

mod allocations;
mod clock;
mod cores;
mod latency;
mod ping_pong;
mod process;
mod spread;
mod syscalls;

pub use allocations::{AllocationCounts, CountingAllocator, SharedAllocations};
pub use clock::TscClock;
pub use cores::{CoreError, Cores, pin_thread};
pub use latency::{LatencyRecorder, LatencySummary};
pub use ping_pong::{RoundTrips, ping_pong};
pub use process::{ContextSwitches, CpuMeter, CpuTime, Footprint, ProcessError, ResourceLeak};
pub use spread::Spread;
pub use syscalls::{SyscallCount, SyscallError, Traced, count_syscalls};
