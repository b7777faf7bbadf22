//! Which cores this process may use, and pinning threads to them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
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

    /// Cores for a server of so many threads: the first ones, each once.
    #[must_use]
    pub fn of_server(&self, threads: u16) -> Vec<usize> {
        self.allowed.iter().copied().take(threads.max(1).into()).collect()
    }

    /// The core of a serving process beside which so many are at work: the first ones, in turn.
    #[must_use]
    pub fn of_peer(&self, others: usize) -> usize {
        self.allowed.get(others % self.allowed.len().max(1)).copied().unwrap_or(0)
    }

    /// The core of client process `number`: in turn those that no server of one thread has.
    #[must_use]
    pub fn of_client(&self, number: u32) -> usize {
        let (server, client) = self.server_and_client();
        let others: Vec<usize> = self.allowed.iter().copied().filter(|core| *core != server).collect();
        others.get(number as usize % others.len().max(1)).copied().unwrap_or(client)
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

/// Lets the calling thread (and what it spawns) use these cores only.
///
/// # Errors
/// When one does not exist, or none is allowed.
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
