//! What is measured: plain data.

use super::pages::Pages;
use crate::experiments::ExperimentError;
use farcall_io::{Combining, Config};
use farcall_link::Waiting;
use std::fmt;

/// Where requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// One page after the other, whichever thread asks: what stacks up is adjacent.
    Adjacent,
    /// Any page, but never two that are adjacent.
    Random,
    /// Of six requests two are adjacent: what the paper's table I says of its load.
    TwoOfSix,
}

/// Where requests go, and how many of them read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Where.
    pub places: Places,
    /// Of a hundred requests so many read; the others write.
    pub reads_percent: u64,
}

impl Places {
    /// The fewest pages for which that can be.
    const fn pages_min(self) -> u64 {
        match self {
            Self::Adjacent | Self::Random => 4,
            Self::TwoOfSix => 50,
        }
    }
}

impl Workload {
    /// Pages one after the other, read.
    pub const ADJACENT_READS: Self =
        Self { name: "adjacent-read", places: Places::Adjacent, reads_percent: 100 };
    /// Pages one after the other, written.
    pub const ADJACENT_WRITES: Self =
        Self { name: "adjacent-write", places: Places::Adjacent, reads_percent: 0 };
    /// Any pages, read.
    pub const RANDOM_READS: Self = Self { name: "random-read", places: Places::Random, reads_percent: 100 };
    /// Any pages, written.
    pub const RANDOM_WRITES: Self = Self { name: "random-write", places: Places::Random, reads_percent: 0 };
    /// Any pages, three quarters of them read: Facebook's SYS.
    pub const MIXED: Self = Self { name: "mixed", places: Places::Random, reads_percent: 75 };
    /// As many adjacent pages as the paper's table I tells of.
    pub const TABLE_1: Self = Self { name: "table-1", places: Places::TwoOfSix, reads_percent: 100 };
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ADJACENT_READS,
        Self::ADJACENT_WRITES,
        Self::RANDOM_READS,
        Self::RANDOM_WRITES,
        Self::MIXED,
        Self::TABLE_1,
    ];
}

/// Whose memory is read and written, here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalMemory {
    /// The program's own, copied through the session's registered pool (preMR).
    Copied,
    /// The program's own, registered for each request (dynMR). Such requests go alone.
    RegisteredEach,
    /// Registered once by the program: nothing is copied.
    RegisteredOnce,
}

impl LocalMemory {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copied => "pre",
            Self::RegisteredEach => "dyn",
            Self::RegisteredOnce => "attached",
        }
    }
}

/// Who looks for completions, and how he waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// The one thread that submits, without end, when it has nothing else to do.
    Inline,
    /// A thread of its own, without end.
    Busy,
    /// A thread that sleeps until an event, and takes one completion at a look.
    Event,
    /// A thread that sleeps until an event, and takes completions by batches.
    EventBatch,
    /// A thread that looks a fixed number of times after each event.
    NaiveHybrid,
    /// A thread that sleeps after 120 empty looks in a row (RDMAbox, algorithm 3).
    Adaptive,
}

impl Polling {
    /// MAX_RETRY of the paper.
    const MAX_RETRY: u32 = 120;
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Inline, Self::Busy, Self::Event, Self::EventBatch, Self::NaiveHybrid, Self::Adaptive];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Busy => "busy",
            Self::Event => "event",
            Self::EventBatch => "event-batch",
            Self::NaiveHybrid => "hybrid",
            Self::Adaptive => "adaptive",
        }
    }

    pub(super) const fn waiting(self) -> Waiting {
        match self {
            Self::Inline | Self::Busy => Waiting::Busy,
            Self::Event | Self::EventBatch => Waiting::EventBatch,
            Self::NaiveHybrid => Waiting::NaiveHybrid,
            Self::Adaptive => Waiting::Adaptive { max_retry: Self::MAX_RETRY },
        }
    }

    /// Completions taken at a look (MAX_POLL_WC).
    pub(super) const fn max_poll_wc(self) -> usize {
        if matches!(self, Self::Event) { 1 } else { 16 }
    }
}

/// When requests of a burst reach the merge queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// As they are submitted.
    AsTheyCome,
    /// A policy of admission holds them back until the burst is whole, but for its first, which nothing may hold back:
    /// what a block layer's plug does. One thread submits and looks; how many work requests come out is no matter of
    /// time.
    Stacked,
}

/// Requests through sessions of `farcall-io`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemioTask {
    /// Where to, and which.
    pub workload: Workload,
    /// How requests are put together.
    pub combining: Combining,
    /// Bytes that may be in flight on a session; without, there is no admission control.
    pub window_bytes: Option<u64>,
    /// When requests reach the queue.
    pub arrival: Arrival,
    /// Whose memory.
    pub memory: LocalMemory,
    /// Who looks for completions.
    pub polling: Polling,
    /// Threads that submit.
    pub threads: u32,
    /// Requests that a thread submits before it waits for all of them.
    pub burst: u32,
    /// Bytes of a request.
    pub len_bytes: usize,
    /// Bytes that each donor grants; more if the workload needs more pages.
    pub region_bytes: usize,
    /// Queue pairs of a session.
    pub connections: usize,
    /// Donors, a session with each; a burst goes to one of them, the next to the next.
    pub peers: u32,
    /// Completion queues, each with a thread that looks at it; sessions are spread over them.
    pub pollers: u32,
}

impl RemioTask {
    /// 4 KiB pages as the paper has them, by two threads, adaptively waited for.
    #[must_use]
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

    /// The same in bursts that stack up.
    #[must_use]
    pub const fn stacked(self) -> Self {
        Self { arrival: Arrival::Stacked, polling: Polling::Inline, threads: 1, ..self }
    }

    /// Whether it can be measured.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), ExperimentError> {
        let is_inline = self.polling == Polling::Inline;
        if is_inline && (self.threads, self.pollers) != (1, 1) {
            return Err(
                "only one thread can look for completions inline: use one, or another way to wait".into()
            );
        }
        if self.arrival == Arrival::Stacked && !is_inline {
            return Err("bursts that stack up are looked for inline".into());
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

    /// Requests of all threads that are not over.
    pub(super) const fn outstanding(&self) -> usize {
        self.threads as usize * self.burst as usize
    }
}

/// A name for each way of combining.
#[must_use]
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

/// Requests with nothing between a thread and its queue pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VerbsTask {
    /// Where to, and which.
    pub workload: Workload,
    /// Work requests outstanding.
    pub window: u32,
    /// Bytes of each.
    pub len_bytes: usize,
    /// Bytes that the donor grants.
    pub region_bytes: usize,
}

impl VerbsTask {
    pub(super) fn pages(&self, seed: u64) -> Pages {
        // Of those under way no two are the same.
        let count_min = self.workload.places.pages_min().max(4 * u64::from(self.window));
        Pages::of(self.len_bytes, self.region_bytes, count_min, seed)
    }
}

impl fmt::Display for VerbsTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, bare verbs, {} outstanding", self.workload.name, self.window)
    }
}
