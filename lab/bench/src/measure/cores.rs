//! Cores that this process may use, and pinning of threads to them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Error of pinning or of reading the affinity.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The system did not report the cores that this process may use.
    #[error("cannot read the cores this process may use (sched_getaffinity)")]
    Affinity(#[source] rustix::io::Errno),
    /// The system refused to pin the thread.
    #[error("cannot pin to core {core} (sched_setaffinity; choose one that `taskset -p $$` lists)")]
    Pin {
        /// The requested core.
        core: usize,
        /// Error of the system call.
        source: io::Error,
    },
}

/// The cores this process may run on, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    allowed: Vec<usize>,
}

impl Cores {
    /// Queries the system; the result respects the limits set by `taskset` or a container.
    ///
    /// # Errors
    /// Returns an error if the query fails.
    pub fn allowed() -> Result<Self, CoreError> {
        let set = sched_getaffinity(None).map_err(CoreError::Affinity)?;
        Ok(Self { allowed: (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect() })
    }

    /// Returns all cores.
    pub fn as_slice(&self) -> &[usize] {
        &self.allowed
    }

    /// Returns the cores of server and client: the first two allowed ones. With a single core both ends share it, and
    /// every figure then measures the scheduler; callers report that.
    pub fn server_and_client(&self) -> (usize, usize) {
        let server = self.allowed.first().copied().unwrap_or(0);
        (server, self.allowed.get(1).copied().unwrap_or(server))
    }

    /// Returns the cores of a server with `threads` threads: the first ones, each once.
    pub fn of_server(&self, threads: u16) -> Vec<usize> {
        self.allowed.iter().copied().take(threads.max(1).into()).collect()
    }

    /// Returns the core of a serving process next to `others` running ones: the cores in turn, starting with the
    /// first.
    pub fn of_peer(&self, others: usize) -> usize {
        self.allowed.get(others % self.allowed.len().max(1)).copied().unwrap_or(0)
    }

    /// Returns the core of client process `number`: the cores other than that of a server with one thread, in turn.
    pub fn of_client(&self, number: u32) -> usize {
        let (server, client) = self.server_and_client();
        let others: Vec<usize> = self.allowed.iter().copied().filter(|core| *core != server).collect();
        others.get(number as usize % others.len().max(1)).copied().unwrap_or(client)
    }

    /// Returns whether two ends can poll without sharing a core.
    pub fn has_two(&self) -> bool {
        self.allowed.len() >= 2
    }
}

/// Pins the calling thread (and threads that it spawns) to `core`.
///
/// # Errors
/// Returns an error if the core does not exist or is not allowed.
pub fn pin_thread(core: usize) -> Result<(), CoreError> {
    farcall_drive::pin_to_core(core).map_err(|source| CoreError::Pin { core, source })
}

/// Restricts the calling thread (and threads that it spawns) to these cores.
///
/// # Errors
/// Returns an error if a core does not exist, or if none is allowed.
pub(crate) fn keep_thread_on(cores: &[usize]) -> Result<(), CoreError> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(CoreError::Pin { core, source: io::ErrorKind::InvalidInput.into() });
        }
        set.set(core);
    }
    let first = cores.first().copied().unwrap_or(0);
    sched_setaffinity(None, &set).map_err(|errno| CoreError::Pin { core: first, source: errno.into() })
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
