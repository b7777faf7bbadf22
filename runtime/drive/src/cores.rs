//! Processor affinity.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread to one core.
///
/// # Errors
/// If the core does not exist, or the process may not use it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("core {core}: at most {} are known", CpuSet::MAX_CPU)));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}
