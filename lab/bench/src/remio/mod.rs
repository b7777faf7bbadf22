//! One-sided I/O to memory of another process: rate, latency and cost of requests, through `farcall-io`
//! and through plain verbs.
//!
//! - [`RemioTask`]: requests of one or several threads through sessions; [`VerbsTask`]: the same directly on a queue
//!   pair, which is the limit;
//! - [`MemoryServer`]: the other process. Its memory contains bytes that identify their location. Every byte that is read is
//!   checked, and at the end the memory server checks all written pages.

mod admission;
mod chooser;
mod memory_server;
mod pages;
mod sample;
mod sessions;
mod task;
mod user;
mod verbs;

pub use memory_server::MemoryServer;
pub use sample::Sample;
pub use task::{Arrival, LocalMemory, Places, Polling, RemioTask, VerbsTask, Workload, combining_name};

pub use farcall_io::Combining;

use crate::experiments::ExperimentError;
use crate::peer::PairPlan;
use farcall::select::SelectedNic;
use std::fmt;

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Task {
    /// Through sessions.
    Remio(RemioTask),
    /// Through plain verbs.
    Verbs(VerbsTask),
}

impl From<RemioTask> for Task {
    fn from(task: RemioTask) -> Self {
        Self::Remio(task)
    }
}

impl From<VerbsTask> for Task {
    fn from(task: VerbsTask) -> Self {
        Self::Verbs(task)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remio(task) => task.fmt(f),
            Self::Verbs(task) => task.fmt(f),
        }
    }
}

/// Measures one task between this process and new memory servers. `seed` determines the accessed pages and the memory servers' bytes.
///
/// # Errors
/// Returns an error if the task is not possible, if a request fails, or if a byte is wrong.
pub fn measure(
    chosen: &SelectedNic,
    task: &Task,
    plan: &PairPlan,
    seed: u64,
) -> Result<Sample, ExperimentError> {
    match task {
        Task::Remio(task) => {
            task.check()?;
            let servers = memory_server::start(chosen, plan, task.pages(seed), task.peers, task.connections)?;
            sessions::measure(chosen, task, plan, seed, &servers)
        }
        Task::Verbs(task) => {
            let servers = memory_server::start(chosen, plan, task.pages(seed), 1, 1)?;
            verbs::measure(chosen, task, plan, seed, &servers[0])
        }
    }
}

#[cfg(test)]
mod tests;
