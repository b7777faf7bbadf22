//! Which cores this process may use, and pinning threads to them.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::io;

/// Pinning or reading the affinity failed.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The system refused to tell which cores this process may use.
    #[error("cannot read the cores this process may use (sched_getaffinity): {0}")]
    Affinity(#[source] rustix::io::Errno),
    /// The system refused to pin.
    #[error("cannot pin to core {core} (sched_setaffinity): {source}; choose one that `taskset -p $$` lists")]
    Pin {
        /// The core asked for.
        core: usize,
        /// Why not.
        source: io::Error,
    },
}

/// The cores this process may run on, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    allowed: Vec<usize>,
}

impl Cores {
    /// Asks the system, and respects what `taskset` or a container allows.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn allowed() -> Result<Self, CoreError> {
        let set = sched_getaffinity(None).map_err(CoreError::Affinity)?;
        Ok(Self { allowed: (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect() })
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[usize] {
        &self.allowed
    }

    /// A core for the server and another for the client: the first two allowed. With a single core both ends share
    /// it, and every figure then measures the scheduler; callers say so.
    #[must_use]
    pub fn server_and_client(&self) -> (usize, usize) {
        let server = self.allowed.first().copied().unwrap_or(0);
        (server, self.allowed.get(1).copied().unwrap_or(server))
    }

    /// Whether two ends can spin without sharing a core.
    #[must_use]
    pub fn has_two(&self) -> bool {
        self.allowed.len() >= 2
    }
}

/// Pins the calling thread (and what it spawns) to `core`.
///
/// # Errors
/// When the core does not exist or is not allowed.
pub fn pin_thread(core: usize) -> Result<(), CoreError> {
    farcall_drive::pin_to_core(core).map_err(|source| CoreError::Pin { core, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_that_core_only() {
        let last = *Cores::allowed().unwrap().as_slice().last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin_thread(last).unwrap();
            Cores::allowed().unwrap()
        });
        assert_eq!(pinned.join().unwrap().as_slice(), [last]);
    }

    #[test]
    fn impossible_cores_are_refused_with_the_number() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            assert!(pin_thread(core).unwrap_err().to_string().contains(&core.to_string()));
        }
    }
}
