//! Descriptions of the measurements: plain data.

use super::pages::Pages;
use crate::experiments::ExperimentError;
use farcall_io::{Combining, Config};
use farcall_link::WaitStrategy;
use std::fmt;

/// Pattern of the accessed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// Consecutive pages over all threads, so that queued requests are adjacent.
    Adjacent,
    /// Random pages, never two adjacent ones.
    Random,
    /// Two of six requests are adjacent: the share that the paper's table I states for its load.
    TwoOfSix,
}

/// Pattern of the accessed pages, and share of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Name of the workload.
    pub name: &'static str,
    /// Pattern of the accessed pages.
    pub places: Places,
    /// Percentage of requests that read; the others write.
    pub reads_percent: u64,
}

impl Places {
    /// Returns the minimum number of pages for the pattern.
    const fn pages_min(self) -> u64 {
        match self {
            Self::Adjacent | Self::Random => 4,
            Self::TwoOfSix => 50,
        }
    }
}

impl Workload {
    /// READs of consecutive pages.
    pub const ADJACENT_READS: Self =
        Self { name: "adjacent-read", places: Places::Adjacent, reads_percent: 100 };
    /// WRITEs of consecutive pages.
    pub const ADJACENT_WRITES: Self =
        Self { name: "adjacent-write", places: Places::Adjacent, reads_percent: 0 };
    /// READs of random pages.
    pub const RANDOM_READS: Self = Self { name: "random-read", places: Places::Random, reads_percent: 100 };
    /// WRITEs of random pages.
    pub const RANDOM_WRITES: Self = Self { name: "random-write", places: Places::Random, reads_percent: 0 };
    /// Random pages with three quarters READs: Facebook's SYS.
    pub const MIXED: Self = Self { name: "mixed", places: Places::Random, reads_percent: 75 };
    /// The share of adjacent pages that the paper's table I states.
    pub const TABLE_1: Self = Self { name: "table-1", places: Places::TwoOfSix, reads_percent: 100 };
    /// All workloads.
    pub const ALL: [Self; 6] = [
        Self::ADJACENT_READS,
        Self::ADJACENT_WRITES,
        Self::RANDOM_READS,
        Self::RANDOM_WRITES,
        Self::MIXED,
        Self::TABLE_1,
    ];
}

/// Owner of the local memory that requests read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalMemory {
    /// The program's own memory, copied through the session's registered pool (preMR).
    Copied,
    /// The program's own memory, registered for each request (dynMR). Such requests are not merged.
    RegisteredEach,
    /// Memory that the program registered once; nothing is copied.
    RegisteredOnce,
}

names! { LocalMemory { Copied => "pre", RegisteredEach => "dyn", RegisteredOnce => "attached" } }

/// Thread that polls for completions, and its wait strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// The single submitting thread polls continuously when it has no other work.
    Inline,
    /// A separate thread polls continuously.
    Busy,
    /// A separate thread sleeps until an event, and handles one completion per poll.
    Event,
    /// A separate thread sleeps until an event, and handles completions in batches.
    EventBatch,
    /// A separate thread polls a fixed number of times after each event.
    NaiveHybrid,
    /// A separate thread sleeps after 120 consecutive empty polls (RDMAbox, algorithm 3).
    Adaptive,
}

names! {
    Polling {
        Inline => "inline", Busy => "busy", Event => "event", EventBatch => "event-batch",
        NaiveHybrid => "hybrid", Adaptive => "adaptive",
    }
}

impl Polling {
    /// MAX_RETRY of the paper.
    const MAX_RETRY: u32 = 120;

    pub(super) const fn waiting(self) -> WaitStrategy {
        match self {
            Self::Inline | Self::Busy => WaitStrategy::Busy,
            Self::Event | Self::EventBatch => WaitStrategy::EventBatch,
            Self::NaiveHybrid => WaitStrategy::NaiveHybrid,
            Self::Adaptive => WaitStrategy::Adaptive { max_retry: Self::MAX_RETRY },
        }
    }

    /// Returns the maximum number of completions per poll (MAX_POLL_WC).
    pub(super) const fn max_poll_wc(self) -> usize {
        if matches!(self, Self::Event) { 1 } else { 16 }
    }
}

/// Time at which the requests of a burst reach the merge queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// When they are submitted.
    AsTheyCome,
    /// When the burst is complete: an admission policy holds them back until then, like the plug of a block layer. The
    /// first request of a burst cannot be held back. One thread submits and polls, so the number of work requests does
    /// not depend on timing.
    Stacked,
}

/// Requests through sessions of `farcall-io`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemioTask {
    /// Access pattern.
    pub workload: Workload,
    /// Combining strategy.
    pub combining: Combining,
    /// Maximum number of bytes in flight on a session; if `None`, there is no admission control.
    pub window_bytes: Option<u64>,
    /// Time at which requests reach the queue.
    pub arrival: Arrival,
    /// Owner of the local memory.
    pub memory: LocalMemory,
    /// Thread that polls for completions, and its wait strategy.
    pub polling: Polling,
    /// Number of submitting threads.
    pub threads: u32,
    /// Requests that a thread submits before it waits for all of them.
    pub burst: u32,
    /// Length of a request in bytes.
    pub len_bytes: usize,
    /// Bytes that each memory server grants; more if the workload needs more pages.
    pub region_bytes: usize,
    /// Queue pairs of a session.
    pub connections: usize,
    /// Donors, with one session each; consecutive bursts use the memory servers in turn.
    pub peers: u32,
    /// Completion queues, each with a polling thread; sessions are distributed over them.
    pub pollers: u32,
}

impl RemioTask {
    /// Returns a task with 4 KiB pages, as in the paper, two submitting threads and adaptive polling.
    pub const fn of(workload: Workload, combining: Combining) -> Self {
        Self {
            workload,
            combining,
            window_bytes: None,
            arrival: Arrival::AsTheyCome,
            memory: LocalMemory::Copied,
            polling: Polling::Adaptive,
            threads: 2,
            burst: 32,
            len_bytes: 4096,
            region_bytes: 8 << 20,
            connections: 4,
            peers: 1,
            pollers: 1,
        }
    }

    /// Returns the task with bursts that are held back until they are complete.
    #[must_use]
    pub const fn stacked(self) -> Self {
        Self { arrival: Arrival::Stacked, polling: Polling::Inline, threads: 1, ..self }
    }

    /// Checks whether the task can be measured.
    ///
    /// # Errors
    /// Returns the reason if it cannot.
    pub fn check(&self) -> Result<(), ExperimentError> {
        let is_inline = self.polling == Polling::Inline;
        if is_inline && (self.threads, self.pollers) != (1, 1) {
            return Err("only one thread can poll completions inline: use one, or another way to wait".into());
        }
        if self.arrival == Arrival::Stacked && !is_inline {
            return Err("bursts that stack up are polled inline".into());
        }
        if self.pollers > self.peers {
            let Self { pollers, peers, .. } = self;
            return Err(
                format!("{pollers} completion queues for {peers} sessions: use as many at most").into()
            );
        }
        Ok(())
    }

    pub(super) fn pages(&self, seed: u64) -> Pages {
        Pages::of(self.len_bytes, self.region_bytes, self.workload.places.pages_min(), seed)
    }

    pub(super) fn config(&self) -> Config {
        let usual = Config::default();
        let each = self.memory == LocalMemory::RegisteredEach;
        Config {
            connections: self.connections,
            combining: self.combining,
            register_from_bytes: if each { 1 } else { usual.pool_bytes },
            outstanding: self.outstanding().max(usual.outstanding),
            ..usual
        }
    }

    /// Returns the maximum number of outstanding requests of all threads.
    pub(super) const fn outstanding(&self) -> usize {
        self.threads as usize * self.burst as usize
    }
}

/// Returns the name of a combining strategy.
pub const fn combining_name(combining: Combining) -> &'static str {
    match combining {
        Combining::Single => "single",
        Combining::Doorbell => "chain",
        Combining::Merge => "merge",
        Combining::MergeAndChain => "merge+chain",
    }
}

impl fmt::Display for RemioTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, combining, memory, polling, threads, burst, .. } = self;
        let combining = combining_name(*combining);
        let (memory, polling) = (memory.name(), polling.name());
        write!(f, "{}, {combining}, {threads} × {burst}, {memory}, {polling}", workload.name)?;
        if let Some(bytes) = self.window_bytes {
            write!(f, ", window of {} KiB", bytes >> 10)?;
        }
        if self.peers > 1 {
            write!(f, ", {} peers", self.peers)?;
        }
        Ok(())
    }
}

/// Requests that a thread posts directly on its queue pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VerbsTask {
    /// Access pattern.
    pub workload: Workload,
    /// Outstanding work requests.
    pub window: u32,
    /// Length of each work request in bytes.
    pub len_bytes: usize,
    /// Bytes that the memory server grants.
    pub region_bytes: usize,
}

impl VerbsTask {
    pub(super) fn pages(&self, seed: u64) -> Pages {
        // Large enough that outstanding requests can access different pages.
        let count_min = self.workload.places.pages_min().max(4 * u64::from(self.window));
        Pages::of(self.len_bytes, self.region_bytes, count_min, seed)
    }
}

impl fmt::Display for VerbsTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, bare verbs, {} outstanding", self.workload.name, self.window)
    }
}
